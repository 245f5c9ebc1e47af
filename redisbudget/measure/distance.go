package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// measureDistance prints how many attempts sixty requests of short-lived
// processes make to a host that is down, if Redis is far away.
func measureDistance(out io.Writer, addr string) error {
	for _, roundTrip := range []time.Duration{2, 6, 10, 20} {
		roundTrip *= time.Millisecond
		proxyAddr, stop, err := startProxy(addr, roundTrip/2)
		if err != nil {
			return err
		}
		const processes, requests = 20, 3
		attempts, local, err := measureShortLived(shortLived{
			redisAddr: proxyAddr, namespace: "distance-" + roundTrip.String(),
			roundTrip: roundTrip, processes: processes, requests: requests,
		})
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		fmt.Fprintf(out, "outage, round trip of %v, %d processes of %d requests: %d attempts, %d decisions without Redis\n",
			roundTrip, processes, requests, attempts, local)
	}
	return nil
}

// startProxy starts a proxy to addr that delivers all bytes in both directions
// later.
func startProxy(addr string, delay time.Duration) (proxyAddr string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return // stopped
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				_ = near.Close() // the client sees that
				continue
			}
			wg.Go(func() { deliver(far, near, delay) })
			wg.Go(func() { deliver(near, far, delay) })
		}
	})
	stop = func() error {
		err := l.Close()
		wg.Wait() // the processes have ended, and with them their connections
		return err
	}
	return l.Addr().String(), stop, nil
}

// A packet is bytes and the time at which they arrive.
type packet struct {
	bytes []byte
	at    time.Time
}

// deliver copies from src to dst until either is closed, and closes dst.
func deliver(dst, src net.Conn, delay time.Duration) {
	packets := make(chan packet, 1024)
	go func() {
		defer close(packets)
		for {
			buf := make([]byte, 4096)
			n, err := src.Read(buf)
			if n > 0 {
				packets <- packet{buf[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range packets {
		time.Sleep(time.Until(p.at))
		_, _ = dst.Write(p.bytes) // the reader sees the end, too
	}
	_ = dst.Close()
}

// dialFar returns a dialer that takes a round trip longer.
func dialFar(roundTrip time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case <-time.After(roundTrip):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}
