"use strict";
// Shows the values of a chart next to the pointer, or at the place that the
// arrow keys have moved to.
for (const figure of document.querySelectorAll("figure")) {
  const series = JSON.parse(figure.querySelector("script").textContent);
  const tip = figure.querySelector(".tip");
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  for (const svg of figure.querySelectorAll("svg")) {
    const plot = JSON.parse(svg.dataset.plot);
    const visible = xs.filter((x) => x >= plot.XMin && x <= plot.XMax);
    const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cross.setAttribute("class", "cross");
    cross.setAttribute("y1", plot.Top);
    cross.setAttribute("y2", plot.Top + plot.Height);
    let at = -1;

    const share = (x) => plot.XLog
      ? Math.log(x / plot.XMin) / Math.log(plot.XMax / plot.XMin)
      : (x - plot.XMin) / (plot.XMax - plot.XMin);
    const nearest = (list, x) => {
      let best = 0;
      list.forEach((v, i) => { if (Math.abs(share(v) - share(x)) < Math.abs(share(list[best]) - share(x))) best = i; });
      return best;
    };
    const hide = () => { tip.hidden = true; cross.remove(); at = -1; };
    const show = (index) => {
      if (visible.length === 0) return;
      at = Math.max(0, Math.min(visible.length - 1, index));
      const x = visible[at], px = plot.Left + plot.Width * share(x);
      cross.setAttribute("x1", px);
      cross.setAttribute("x2", px);
      svg.append(cross);
      tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: format(x) }));
      series.forEach((s) => {
        const y = s.y[nearest(s.x, x)];
        if (y === null || y === undefined) return;
        const row = document.createElement("div"), swatch = document.createElement("i");
        swatch.style.background = `var(--s${s.style})`;
        row.append(swatch, `${s.name} ${format(y)}`);
        tip.append(row);
      });
      tip.hidden = false;
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      const left = px * scale, room = svg.getBoundingClientRect().width;
      tip.style.left = left > room / 2 ? "auto" : `${left + 12}px`;
      tip.style.right = left > room / 2 ? `${room - left + 12}px` : "auto";
      tip.style.top = `${plot.Top * scale}px`;
    };
    svg.addEventListener("pointermove", (e) => {
      const box = svg.getBoundingClientRect();
      const part = ((e.clientX - box.left) / box.width * svg.viewBox.baseVal.width - plot.Left) / plot.Width;
      const x = plot.XLog ? plot.XMin * (plot.XMax / plot.XMin) ** part : plot.XMin + part * (plot.XMax - plot.XMin);
      show(nearest(visible, x));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[e.key];
      if (step) show(at + step);
      else if (e.key === "Home") show(0);
      else if (e.key === "End") show(visible.length - 1);
      else if (e.key === "Escape") hide();
      else return;
      e.preventDefault();
    });
  }
}

function format(v) {
  return Math.abs(v) >= 999.5 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(3)));
}
