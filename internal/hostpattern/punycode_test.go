package hostpattern_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/internal/hostpattern"
)

// The samples of RFC 3492, section 7.1, in lower case.
func TestXNForms(t *testing.T) {
	for name, want := range map[string]string{
		"ليهمابتكلموشعربي؟":      "egbpdaj6bu4bxfgehfvwxn",
		"他们为什么不说中文":              "ihqwcrb4cv8a8dqg056pqjye",
		"他們爲什麽不說中文":              "ihqwctvzc91f659drss3x8bo0yb",
		"Pročprostěnemluvíčesky": "proprostnemluvesky-uyb24dma41a",
		"למההםפשוטלאמדבריםעברית": "4dbcagdahymbxekheh6e0a7fei0b",
		"यहलोगहिन्दीक्योंनहींबोलसकतेहैं":           "i1baa7eci9glrd9b2ae1bj0hfcgg6iyaf8o0a1dig0cd",
		"なぜみんな日本語を話してくれないのか":                       "n8jok5ay5dzabd5bym9f0cm5685rrjetr6pdxa",
		"세계의모든사람들이한국어를이해한다면얼마나좋을까":                 "989aomsvi5e83db1d2a355cv1e0vak1dwrv93d5xbh15a0dt30a5jpsd879ccm6fea98c",
		"почемужеонинеговорятпорусски":             "b1abfaaepdrnnbgefbadotcwatmq2g4l",
		"PorquénopuedensimplementehablarenEspañol": "porqunopuedensimplementehablarenespaol-fmd56a",
		"TạisaohọkhôngthểchỉnóitiếngViệt":          "tisaohkhngthchnitingvit-kjcr8268qyxafd2f1b9g",
		"3年B組金八先生":                  "3b-ww4c5e180e575a65lsy2b",
		"安室奈美恵-with-SUPER-MONKEYS":  "-with-super-monkeys-pc58ag80a8qai00g7n9n",
		"Hello-Another-Way-それぞれの場所": "hello-another-way--fc4qua05auwb3674vfr0b",
		"ひとつ屋根の下2":                  "2-u9tlzr9756bt3uc0v",
		"MajiでKoiする5秒前":             "majikoi5-783gue6qz075azm5e",
		"パフィーdeルンバ":                 "de-jg4avhby1noc0d",
		"そのスピードで":                   "d9juau41awczczp",
	} {
		got := hostpattern.Canonical(&url.URL{Scheme: "http", Host: name + ".test"})
		assert.Equal(t, "http://xn--"+want+".test", got)
	}
	// The last sample is in ASCII, and not changed.
	got := hostpattern.Canonical(&url.URL{Scheme: "http", Host: "-> $1.00 <-"})
	assert.Equal(t, "http://-> $1.00 <-", got)
}

// The key of a name is that of the host that net/http connects to.
func TestXNFormsAreThoseOfNetHTTP(t *testing.T) {
	for _, name := range []string{
		"bücher.example", "BÜCHER.Example", "a.日本語.jp", "faß.de", "παράδειγμα.δοκιμή",
		"пример.испытание", "한국.kr", "ü.ü.ü", "café-1.test", "😀.test",
		strings.Repeat("ü", 20) + "." + strings.Repeat("é", 20),
	} {
		got := hostpattern.Canonical(&url.URL{Scheme: "http", Host: name})
		assert.Equal(t, "http://"+dialedHost(name), got)
	}
}
