// Charts: an SVG as large as its place, a cursor for pointer and arrow keys, a line that reads it out, a table behind.

const MARGIN = { left: 52, right: 14, top: 10, bottom: 24 };

/** Round numbers from low to high, some of them. */
function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
}

/** The nearest round bounds around some numbers. */
function bounds(low, high, most) {
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const found = ticks(low, high, most);
  const step = found.length > 1 ? found[1] - found[0] : high - low;
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

/** The place of the number that is nearest. */
const nearest = (numbers, wanted) => numbers.reduce((best, number, place) => (Math.abs(number - wanted) < Math.abs(numbers[best] - wanted) ? place : best), 0);

class Chart {
  /**
   * section: with a heading, .readout, .plot and a table.
   * places(data): where the cursor can be, as numbers that rise, such as rounds; it stays with its number. draw(area, data, at): what is drawn, into area.layer.
   * read(data, at): a line about the place `at`. empty(data): said while there is no place.
   * table(data): head and rows, of strings. follows: whether the cursor stays with the last place until it is moved.
   */
  constructor(id, { places, draw, read, empty, table, follows = true }) {
    this.section = byId(id);
    Object.assign(this, { places, draw, read, empty, table, follows });
    this.title = this.section.querySelector("h2").textContent;
    this.readout = this.section.querySelector(".readout");
    this.plot = this.section.querySelector(".plot");
    this.details = this.section.querySelector("details");
    this.details.addEventListener("toggle", () => this.fill());
    this.chosen = null; // the number of a place, by the reader
    this.data = null;
    this.names = []; // of the places
    this.centres = [];
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.choose(null)); // a finger is lifted to read
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.choose(null));
    new ResizeObserver(() => this.render()).observe(this.plot);
  }

  /** title: of the section. caption: of the table, without its order. */
  rename(title, caption) {
    if (this.title === title) return;
    this.title = title;
    say(this.section.querySelector("h2"), title);
    say(this.details.querySelector("summary"), `${title} as a table`);
    this.details.querySelector(".scroll").setAttribute("aria-label", `${title} as a table`);
    say(this.details.querySelector("caption"), `${caption} by round, the newest first`);
  }

  show(data) {
    this.data = data;
    this.render();
    this.fill();
  }

  choose(name) {
    this.chosen = name;
    this.render(true);
  }

  point(event) {
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    this.choose(this.centres.length ? this.names[nearest(this.centres, x)] : null);
  }

  key(event) {
    const last = this.names.length - 1;
    const now = this.chosen === null ? last : nearest(this.names, this.chosen);
    const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: last, PageUp: now + 10, PageDown: now - 10 }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.choose(this.names[Math.min(last, Math.max(0, to))]);
  }

  /** moved: the reader did it. What has the focus is read out whenever it changes, so new data leave that alone. */
  render(moved = false) {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!this.data || !width) return;
    this.names = this.places(this.data);
    const places = this.names.length;
    const layer = svg("svg", { "aria-hidden": "true", class: this.section.id.replace("-chart", "") });
    if (places === 0) {
      layer.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "none" }, this.empty(this.data)));
      this.centres = [];
      for (const name of ["tabindex", "aria-valuemin", "aria-valuemax", "aria-valuenow", "aria-valuetext"]) this.plot.removeAttribute(name);
      build(this.plot, { role: "img", "aria-label": `${this.title}: ${this.empty(this.data)}` }, []);
      say(this.readout, "");
    } else {
      const chosen = this.chosen === null ? null : nearest(this.names, this.chosen);
      const at = chosen ?? (this.follows ? places - 1 : null);
      const area = { layer, left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
      this.centres = this.draw(area, this.data, chosen);
      const text = this.read(this.data, at);
      say(this.readout, text);
      if (moved || document.activeElement !== this.plot) build(this.plot, { role: "slider", tabindex: 0, "aria-label": `${this.title}, read with the arrow keys`, "aria-valuemin": 1, "aria-valuemax": places, "aria-valuenow": (at ?? places - 1) + 1, "aria-valuetext": text }, []);
    }
    this.plot.replaceChildren(layer);
  }

  fill() {
    if (!this.details.open || !this.data) return;
    const { head, rows } = this.table(this.data);
    const cells = (names) => names.map((name, column) => html("th", { scope: "col", ...(column ? {} : { class: "first" }) }, name));
    this.details.querySelector("thead").replaceChildren(html("tr", {}, ...cells(head)));
    const line = ([first, ...others]) => html("tr", {}, html("th", { scope: "row" }, first), ...others.map((text) => html("td", {}, text)));
    this.details.querySelector("tbody").replaceChildren(...rows.map(line));
  }
}

/** Axes with their numbers; back come the scales. x: [low, high], or null where the places are labelled otherwise. */
function frame({ layer, left, right, top, bottom }, { x, y, xText, yText }) {
  const scaleX = x && ((value) => (x[0] === x[1] ? (left + right) / 2 : left + ((value - x[0]) / (x[1] - x[0])) * (right - left)));
  const scaleY = (value) => bottom - ((value - y[0]) / (y[1] - y[0])) * (bottom - top);
  for (const value of ticks(y[0], y[1], 4)) {
    const height = scaleY(value);
    layer.append(svg("line", { x1: left, x2: right, y1: height, y2: height, class: value === y[0] ? "axis" : "rule" }));
    layer.append(svg("text", { x: left - 9, y: height + 4, "text-anchor": "end" }, yText(value)));
  }
  const wanted = x && x[0] !== x[1] ? ticks(x[0], x[1], Math.max(2, Math.floor((right - left) / 70))) : x ? [x[0]] : [];
  for (const value of wanted.filter(Number.isInteger)) {
    layer.append(svg("text", { x: scaleX(value), y: bottom + 17, "text-anchor": "middle" }, xText(value)));
  }
  return [scaleX, scaleY];
}

/** A line through points [x, y]; where y is null it has a gap. */
function path(points) {
  let pen = "M";
  return points
    .map(([x, y]) => {
      const step = y === null ? "" : `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = y === null ? "M" : "L";
      return step;
    })
    .join("");
}

/** The scale of a metric's axis: [range of values, text of a tick]. Accuracy is drawn close, others from 0. */
const scaleOf = (metric) =>
  metric === "accuracy"
    ? [(low, high) => bounds(Math.max(0, low - 0.01), Math.min(1, high + 0.01), 4).map((value) => Math.min(1, Math.max(0, value))), (share) => `${+(100 * share).toFixed(2)}${NARROW}%`]
    : [(low, high) => bounds(Math.min(0, low), high, 4), (value) => String(+value.toPrecision(3))];

/** A curve of a metric over rounds. column: of a point [version, after seconds, main metric, second metric]. */
function curve(id, column) {
  const value = (point) => point[column];
  return new Chart(id, {
    places: ({ points }) => points.map(([version]) => version),
    empty: ({ every }) => (every === null ? "Not measured yet." : `Not measured yet: the first evaluation follows round ${asCount(every)}.`),
    read: ({ points, metric }, at) => parted(`round ${asCount(points[at][0])}`, asMetric(metric)(value(points[at]), 2), `after ${asTime(points[at][1])}`),
    draw(area, { points, metric }, at) {
      const [range, name] = scaleOf(metric);
      const numbers = points.map(value).filter((number) => number !== null);
      const y = range(numbers.length ? Math.min(...numbers) : 0, numbers.length ? Math.max(...numbers) : 1);
      const [scaleX, scaleY] = frame(area, { x: [points[0][0], points.at(-1)[0]], y, xText: (round) => compact.format(round), yText: name });
      const placed = points.map((point) => [scaleX(point[0]), value(point) === null ? null : scaleY(value(point))]);
      area.layer.append(svg("path", { d: path(placed), class: "line" }));
      const place = at ?? points.length - 1;
      if (at !== null) area.layer.append(svg("line", { x1: placed[at][0], x2: placed[at][0], y1: area.top, y2: area.bottom, class: "cross" }));
      const dots = points.length <= 25 ? placed.keys() : [place];
      for (const each of dots) {
        const [x, height] = placed[each];
        if (height !== null) area.layer.append(svg("circle", { cx: x, cy: height, r: each === place ? 4.5 : 3, class: "dot" }));
      }
      return placed.map(([x]) => x);
    },
    table: ({ points, metric }) => ({
      head: ["Round", asName(metric), "After"],
      rows: points.map((point) => [asCount(point[0]), asMetric(metric)(value(point), 2), asTime(point[1])]).reverse(),
    }),
  });
}

/** Columns that stand on an axis. parts: of each place a list of heights, from the bottom up. */
function columns(area, { parts, label, yText, at, kind, every }) {
  const totals = parts.map((heights) => heights.reduce((a, b) => a + b, 0));
  const [, high] = bounds(0, Math.max(...totals) || 1, 4);
  const [, scaleY] = frame(area, { x: null, y: [0, high], yText });
  const room = (area.right - area.left) / Math.max(parts.length, 8);
  const width = Math.max(1.5, Math.min(44, room - Math.min(6, Math.max(1, room / 5))));
  const centres = parts.map((_, place) => area.left + room * (place + 0.5));
  const apart = Math.max(1, Math.ceil((every ?? 46) / room)); // labels must not touch
  parts.forEach((heights, place) => {
    let from = 0;
    heights.forEach((height, part) => {
      const [y, base] = [scaleY(from + height), scaleY(from)];
      from += height;
      if (height > 0) {
        const class_ = `${kind(part)}${at === null ? "" : at === place ? " at" : " faded"}`;
        area.layer.append(svg("rect", { x: centres[place] - width / 2, width, y, height: Math.max(base - y, 0.75), class: class_ }));
      }
    });
    if (place % apart === 0) area.layer.append(svg("text", { x: centres[place], y: area.bottom + 17, "text-anchor": "middle" }, label(place)));
  });
  area.layer.append(svg("line", { x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom, class: "axis" }));
  return centres;
}
