// Draws the line charts of a page again for its width, and lets a reader zoom, point and hide lines. The page shows the
// same charts without it. Texts are set as text, never as markup.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const node = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  };

  const shown = (value, percent) => percent
    ? `${+(100 * value).toFixed(2)}%`
    : value.toLocaleString("en", { maximumSignificantDigits: 5 });

  // About `count` round values between two ends.
  const ticks = (low, high, count) => {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((part) => part * power).find((size) => size >= rough * 0.999);
    const values = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) values.push(+at.toPrecision(12));
    return values;
  };

  // Values 1, 2 and 5 times a power of ten; evenly spaced ones where there are too few.
  const logTicks = (low, high, count) => {
    const values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const part of [1, 2, 5]) {
        const value = +(part * 10 ** power).toPrecision(12);
        if (value >= low * 0.999 && value <= high * 1.001) values.push(value);
      }
    return values.length < 3 ? ticks(low, high, count) : values;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.dataset.chart);
      this.svg = figure.querySelector("svg");
      this.tip = figure.querySelector(".tip");
      this.hidden = new Set();
      this.at = null;
      this.reset();
      this.listen();
    }

    get whole() {
      return [this.data.x.low, this.data.x.high];
    }

    reset() {
      [this.low, this.high] = this.whole;
      this.draw();
    }

    // Shows the values from low to high, at least a thousandth of all, and no more than there are.
    show(low, high) {
      const [first, last] = this.whole, least = (last - first) / 1000;
      if (high - low < least) return;
      this.low = Math.max(first, low);
      this.high = Math.min(last, high);
      this.draw();
    }

    zoom(factor, around = (this.low + this.high) / 2) {
      this.show(around - (around - this.low) * factor, around + (this.high - around) * factor);
    }

    get lines() {
      return this.data.lines.filter((line, number) => !this.hidden.has(number));
    }

    // The ends of the vertical axis: those of what is visible, with a margin.
    ends() {
      const { low, high, log } = this.data.y;
      if (this.low === this.data.x.low && this.high === this.data.x.high && !this.hidden.size) return [low, high];
      const seen = this.lines.flatMap((line) => line.points).filter(([x]) => x >= this.low && x <= this.high);
      if (!seen.length) return [low, high];
      const values = seen.map((point) => point[1]), least = Math.min(...values), most = Math.max(...values);
      if (log) return [least * 0.95, most * 1.05];
      const margin = (most - least || Math.abs(most) || 1) * 0.06;
      return [least - margin < 0 && low >= 0 ? 0 : least - margin, most + margin];
    }

    draw() {
      const { x, y } = this.data;
      const width = Math.max(260, this.svg.parentNode.clientWidth || 560), height = width < 460 ? 240 : 280;
      const [bottomValue, topValue] = this.ends();
      const yTicks = y.log ? logTicks(bottomValue, topValue, 5) : ticks(bottomValue, topValue, 5);
      const labels = yTicks.map((value) => shown(value, y.percent));
      const left = 30 + 6.6 * Math.max(...labels.map((label) => label.length), 2), right = 14, top = 12, bottom = 46;
      const place = (value, low, high, log) => log
        ? Math.log(value / low) / Math.log(high / low)
        : (value - low) / (high - low);
      this.across = (value) => left + (width - left - right) * place(value, this.low, this.high, false);
      this.back = (pixel) => this.low + ((pixel - left) / (width - left - right)) * (this.high - this.low);
      const up = (value) => top + (height - top - bottom) * (1 - place(value, bottomValue, topValue, y.log));
      this.up = up;
      this.svg.replaceChildren();
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("height", height);
      yTicks.forEach((value, number) => {
        node("line", { class: "grid", x1: left, x2: width - right, y1: up(value), y2: up(value) }, this.svg);
        node("text", { class: "soft", x: left - 7, y: up(value) + 4, "text-anchor": "end" }, this.svg, labels[number]);
      });
      const xTicks = ticks(this.low, this.high, width < 460 ? 4 : 7).filter((value) => !x.whole || Number.isInteger(value));
      for (const value of xTicks) {
        node("line", { class: "grid", x1: this.across(value), x2: this.across(value), y1: top, y2: height - bottom }, this.svg);
        node("text", { class: "soft", x: this.across(value), y: height - bottom + 17, "text-anchor": "middle" }, this.svg,
          shown(value, x.percent));
      }
      node("text", { class: "soft", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, this.svg, x.words);
      const middle = (top + height - bottom) / 2;
      node("text", { class: "soft", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` },
        this.svg, y.words);
      const clip = `${this.figure.id}-clip`;
      const box = { x: left - 6, y: top - 8, width: width - left - right + 14, height: height - top - bottom + 16 };
      node("rect", box, node("clipPath", { id: clip }, node("defs", {}, this.svg)));
      const plot = node("g", { "clip-path": `url(#${clip})` }, this.svg);
      this.data.lines.forEach((line, number) => {
        if (!this.hidden.has(number)) this.drawLine(plot, line, number);
      });
      this.band = node("rect", { class: "band", x: 0, y: top, width: 0, height: height - top - bottom }, this.svg);
      this.pointer = node("g", { class: "pointer" }, this.svg);
      this.frame = { left, right: width - right, top, bottom: height - bottom };
      this.showTip(this.at);
    }

    drawLine(plot, line, number) {
      const group = node("g", { class: "line", "data-line": number }, plot);
      const points = line.points.map(([x, y]) => `${this.across(x).toFixed(1)},${this.up(y).toFixed(1)}`);
      node("polyline", { class: "mark", fill: "none", stroke: line.colour, "stroke-dasharray": line.dash,
        points: points.join(" ") }, group);
      const visible = line.points.filter(([x]) => x >= this.low && x <= this.high);
      if (visible.length > 40) return;
      for (const [x, y] of visible)
        node("path", { d: line.mark, fill: line.colour, transform: `translate(${this.across(x)} ${this.up(y)})` }, group);
    }

    // The value of x that is nearest to a place, among the points of visible lines.
    nearest(value) {
      let best = null;
      for (const line of this.lines)
        for (const [x] of line.points)
          if (x >= this.low && x <= this.high && (best === null || Math.abs(x - value) < Math.abs(best - value))) best = x;
      return best;
    }

    showTip(at) {
      this.at = at;
      this.pointer.replaceChildren();
      this.tip.replaceChildren();
      this.tip.hidden = at === null || at < this.low || at > this.high;
      if (this.tip.hidden) return;
      const place = this.across(at);
      node("line", { class: "cross", x1: place, x2: place, y1: this.frame.top, y2: this.frame.bottom }, this.pointer);
      if (this.data.x.said) this.tip.appendChild(document.createElement("b")).textContent =
        `${this.data.x.said} ${shown(at, this.data.x.percent)}`;
      for (const line of this.lines)
        for (const [x, y, words] of line.points.filter((point) => point[0] === at)) {
          node("circle", { cx: place, cy: this.up(y), r: 6, fill: "none", stroke: line.colour, "stroke-width": 2 }, this.pointer);
          const row = this.tip.appendChild(document.createElement("span"));
          row.style.setProperty("--line", line.colour);
          row.textContent = `${line.label}: ${words}`;
        }
      const scale = this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width;
      const room = this.figure.clientWidth - this.tip.offsetWidth - 4;
      const wanted = place * scale + (place > (this.frame.left + this.frame.right) / 2 ? -this.tip.offsetWidth - 12 : 12);
      this.tip.style.left = `${Math.max(0, Math.min(room, wanted))}px`;
    }

    // Moves the tooltip to the next or previous point.
    step(by) {
      const places = [...new Set(this.lines.flatMap((line) => line.points.map((point) => point[0])))]
        .filter((x) => x >= this.low && x <= this.high).sort((a, b) => a - b);
      const now = this.at === null ? (by > 0 ? -1 : places.length) : places.indexOf(this.at);
      const next = places[Math.min(places.length - 1, Math.max(0, now + by))];
      if (next !== undefined) this.showTip(next);
    }

    listen() {
      const pixel = (event) => {
        const box = this.svg.getBoundingClientRect();
        return ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
      };
      let start = null;
      this.svg.addEventListener("pointerdown", (event) => { start = pixel(event); });
      this.svg.addEventListener("pointermove", (event) => {
        this.showTip(this.nearest(this.back(pixel(event))));
        if (start === null) return;
        const ends = [start, pixel(event)].sort((a, b) => a - b);
        this.band.setAttribute("x", ends[0]);
        this.band.setAttribute("width", ends[1] - ends[0]);
      });
      window.addEventListener("pointerup", (event) => {
        if (start === null) return;
        const ends = [start, pixel(event)].sort((a, b) => a - b);
        start = null;
        this.band.setAttribute("width", 0);
        if (ends[1] - ends[0] > 8) this.show(this.back(ends[0]), this.back(ends[1]));
      });
      this.svg.addEventListener("pointerleave", () => this.showTip(null));
      this.svg.addEventListener("dblclick", () => this.reset());
      this.svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.back(pixel(event)));
      }, { passive: false });
      const keys = {
        ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), "+": () => this.zoom(0.5), "-": () => this.zoom(2),
        0: () => this.reset(), Escape: () => this.showTip(null),
      };
      this.svg.addEventListener("keydown", (event) => {
        if (!keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
      });
      this.svg.addEventListener("blur", () => this.showTip(null));
      const buttons = { in: () => this.zoom(0.5), out: () => this.zoom(2), all: () => this.reset() };
      for (const button of this.figure.querySelectorAll("button[data-zoom]"))
        button.addEventListener("click", () => buttons[button.dataset.zoom]());
      for (const button of this.figure.querySelectorAll("button[data-line]"))
        button.addEventListener("click", () => this.toggle(button));
    }

    toggle(button) {
      const number = +button.dataset.line, shows = this.hidden.has(number);
      if (shows) this.hidden.delete(number);
      else this.hidden.add(number);
      button.setAttribute("aria-pressed", shows);
      this.draw();
    }
  }

  const charts = [...document.querySelectorAll("figure.live")].map((figure) => new Chart(figure));
  document.documentElement.classList.add("scripted");
  const observer = new ResizeObserver(() => charts.forEach((chart) => chart.draw()));
  observer.observe(document.body);
  window.addEventListener("beforeprint", () => charts.forEach((chart) => chart.showTip(null)));

  const toggle = document.querySelector("button.theme");
  const prefersDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark() ? "dark" : "light")) === "dark";
  toggle.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    toggle.setAttribute("aria-pressed", isDark());
  });
})();
