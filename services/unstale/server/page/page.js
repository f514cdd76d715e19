// How the run stands, as the server tells it: followed, and shown.

const SILENT_S = 30; // the server says something every 10 s: a link that is silent for so long is dead
const FIRST_S = 5; // it says something at once: what holds that back for so long holds back the rest
const AGAIN_S = 5; // to the next try, where the stream was refused or held back
const HIDDEN_S = 60; // between two looks while nobody sees the page

const PHASES = { wait: "waiting for updates", compensate: "compensating", aggregate: "aggregating", evaluate: "evaluating", checkpoint: "saving" };
const PARTS = Object.keys(PHASES);
const STANDING = {
  gathering: "Waiting for clients",
  idle: "Waiting for a client",
  running: "Running",
  finished: "Finished",
  reached: "Finished",
  stopped: "Stopped",
};
const OVER = ["finished", "reached", "stopped"];

let stream = null; // while there is one
let spoke = false; // the stream has said something since it was opened
let quiet_s = 0; // since when nothing was heard of it
let again = null; // timer of what is tried next

let told = null; // everything, as it was told last
let heard = null; // {at, elapsed_s}: when that was, on the page's own clock
let link = "connecting"; // or live, polling, lost
let paused = false;
let stale = new Set(); // sections that are told and not shown
let drawing = false;

const now_s = () => performance.now() / 1000;

// --- shown ---

const mainChart = curve("main-chart", 2);
const secondChart = curve("second-chart", 3);

const SPLITS = { central: "Test set", clients: "Clients, mean", training: "Training, mean", policy: "Policy" };
const SPLIT_WORDS = { central: "Test", clients: "Clients'", training: "Training" };

/** "Test accuracy"; elsewhere "Clients' mae". */
const measureName = (split, name) => `${SPLIT_WORDS[split]} ${name}`;

/** Curve and tile of one of the two metrics. place: 0 or 1. best: a point, or null. */
function showMeasure(chart, id, place, { names, split, points, best, higher_is_better: higher }, every) {
  const name = names[place];
  const [tile, value] = [byId(id).closest(".tile"), points.at(-1)?.[2 + place]];
  tile.hidden = chart.section.hidden = name === undefined;
  mainChart.section.classList.toggle("wide", names.length === 1);
  if (name === undefined) return;
  say(tile.querySelector("dt"), measureName(split, name));
  chart.rename(split === "central" ? asName(name) : measureName(split, name), measureName(split, name));
  chart.show({ points, every, metric: name });
  say(byId(id), value === undefined ? NONE : asMetric(name)(value, 2));
  const superlative = name === "accuracy" ? "best" : higher ? "best, highest:" : "best, lowest:";
  const note = best && place === 0 ? `${superlative} ${asMetric(name)(best[2], 2)}` : `at round ${asCount(points.at(-1)?.[0] ?? null)}`;
  say(byId(`${id}-note`), points.length ? note : "not measured yet");
}

/** The latest value of each metric of each split, where the tiles do not show them all. */
function showMetrics(metrics) {
  const splits = Object.keys(SPLITS).filter((split) => split in metrics);
  const names = [...new Set(splits.flatMap((split) => Object.keys(metrics[split])))];
  const others = splits.flatMap((split) => Object.keys(metrics[split]).filter((name) => !(split === "central" ? ["accuracy", "loss"] : split === "training" ? ["loss"] : []).includes(name)));
  byId("metrics-card").hidden = others.length === 0;
  const head = ["Metric", ...splits.map((split) => SPLITS[split])].map((text) => html("th", { scope: "col" }, text));
  byId("metrics").querySelector("thead").replaceChildren(html("tr", {}, ...head));
  const text = (name, value) => (name !== "accuracy" && Number.isInteger(value) ? asCount(value) : asMetric(name)(value, 2));
  const cell = (split, name) => html("td", {}, name in metrics[split] ? text(name, metrics[split][name]) : NONE);
  const line = (name) => html("tr", {}, html("th", { scope: "row" }, name), ...splits.map((split) => cell(split, name)));
  byId("metrics").querySelector("tbody").replaceChildren(...names.map(line));
}

/** Neighbouring counts together, so that at most some columns come out: [first, last, updates]. */
function binned(counts, most = 26) {
  const width = Math.ceil(counts.length / most) || 1;
  const bins = [];
  for (let first = 0; first < counts.length; first += width) {
    const last = Math.min(first + width, counts.length) - 1;
    bins.push([first, last, counts.slice(first, last + 1).reduce((a, b) => a + b, 0)]);
  }
  return bins;
}
const late = ([first, last], { bounded_at }) => (last >= bounded_at ? `${asCount(first)} or more` : first === last ? asCount(first) : `${asCount(first)} to ${asCount(last)}`);
const stalenessChart = new Chart("staleness-chart", {
  follows: false,
  places: ({ counts }) => binned(counts).map(([first]) => first),
  empty: () => "No round has been applied yet.",
  read(data, at) {
    const bins = binned(data.counts);
    const all = data.counts.reduce((a, b) => a + b, 0);
    if (at === null) return parted("rounds late", `mean ${asNumber(data.mean)}`, counted(all, "update"));
    return parted(`${late(bins[at], data)} ${bins[at][1] === 1 ? "round" : "rounds"} late`, counted(bins[at][2], "update"), asPercent(bins[at][2] / all));
  },
  draw(area, data, at) {
    const bins = binned(data.counts);
    return columns(area, { parts: bins.map((bin) => [bin[2]]), label: (place) => asCount(bins[place][0]), yText: (value) => (Number.isInteger(value) ? compact.format(value) : ""), kind: () => "column", at, every: 30 });
  },
  table(data) {
    const all = data.counts.reduce((a, b) => a + b, 0);
    return { head: ["Rounds late", "Updates", "Share"], rows: binned(data.counts, Infinity).filter((bin) => bin[2]).map((bin) => [late(bin, data), asCount(bin[2]), asPercent(bin[2] / all)]) };
  },
});

const spent = (round) => PARTS.map((part) => round.phases_s[part] ?? 0);
const phasesChart = new Chart("phases-chart", {
  follows: false,
  places: (rounds) => rounds.map(({ version }) => version),
  empty: () => "No round has been applied yet.",
  read(rounds, at) {
    if (at === null) return `the last ${counted(rounds.length, "round")}, time by phase`;
    const parts = PARTS.filter((part) => rounds[at].phases_s[part]).map((part) => `${PHASES[part]} ${asTime(rounds[at].phases_s[part])}`);
    return parted(`round ${asCount(rounds[at].version)}`, ...parts);
  },
  draw: (area, rounds, at) => columns(area, { parts: rounds.map(spent), label: (place) => asCount(rounds[place].version), yText: (value) => (value ? asTime(value) : "0"), kind: (part) => `p${part}`, at, every: 54 }),
  table: (rounds) => ({ head: ["Round", ...PARTS], rows: rounds.map((round) => [asCount(round.version), ...PARTS.map((part) => asTime(round.phases_s[part]))]).reverse() }),
});

const methodsOf = (rounds) => [...new Set(rounds.flatMap((round) => Object.keys(round.errors)))].sort();
const methodName = (method) => (method === "none" ? "as it came" : method);
const compensationChart = new Chart("compensation-chart", {
  places: ({ rounds }) => rounds.map(({ version }) => version),
  empty: ({ compensates }) => (compensates ? "No true updates to compare with in the last rounds." : "No round has been compensated yet."),
  read({ rounds }, at) {
    const parts = Object.entries(rounds[at].errors).map(([method, error]) => `${methodName(method)} ${asNumber(error.l1)}`);
    return `L1 at round ${asCount(rounds[at].version)}: ${parts.join(", ")}`;
  },
  draw(area, { rounds }, at) {
    const found = rounds.flatMap((round) => Object.values(round.errors).map((error) => error.l1)).filter((value) => value !== null);
    const [scaleX, scaleY] = frame(area, { x: [rounds[0].version, rounds.at(-1).version], y: bounds(0, Math.max(...found, 0) || 1, 4), xText: (round) => compact.format(round), yText: (value) => String(+value.toPrecision(3)) });
    if (at !== null) area.layer.append(svg("line", { x1: scaleX(rounds[at].version), x2: scaleX(rounds[at].version), y1: area.top, y2: area.bottom, class: "cross" }));
    for (const [index, method] of [...methodsOf(rounds).entries()].reverse()) {
      const placed = rounds.filter((round) => method in round.errors).map((round) => [scaleX(round.version), round.errors[method].l1 === null ? null : scaleY(round.errors[method].l1)]);
      area.layer.append(svg("path", { d: path(placed), class: `line p${index % 5}` }));
      for (const [x, y] of placed) if (y !== null) area.layer.append(svg("circle", { cx: x, cy: y, r: 2.5, class: `p${index % 5}` }));
    }
    return rounds.map((round) => scaleX(round.version));
  },
  table: ({ rounds }) => ({
    head: ["Round", "Method", "L1", "1 − cos"],
    rows: rounds.flatMap((round) => Object.entries(round.errors).map(([method, error]) => [asCount(round.version), methodName(method), asNumber(error.l1), asNumber(error.cosine)])).reverse(),
  }),
});

const lastRounds = new LastRounds();

const legendLine = (index, name, value) => html("li", {}, html("span", { class: `key p${index % 5}`, "aria-hidden": "true" }), `${name} `, html("b", {}, value));

/** Of a list of numbers or nulls. */
function mean(values) {
  const found = values.filter((value) => value !== null);
  return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
}

const show = {
  run({ run, state }) {
    say(byId("run"), String(run.run ?? NONE));
    say(byId("rounds"), asCount(run.rounds));
    const compensates = run.compensator !== "none";
    byId("compensation-chart").hidden = !compensates;
    byId("rejections").parentElement.classList.toggle("wide", !compensates);
    showAbout(run, state.digest);
  },
  state({ run, state }) {
    say(byId("version"), asCount(state.version));
    const share = run.rounds ? state.version / run.rounds : 0;
    byId("progress").value = share;
    say(byId("round-time"), asTime(state.round_s));
    showAbout(run, state.digest);
    showHint();
  },
  clients({ clients }) {
    showClients(clients);
    const joined = ACTIVE.reduce((sum, state) => sum + (clients[state] ?? 0), 0);
    const all = Object.values(clients).reduce((a, b) => a + b, 0);
    say(byId("active"), asCount(joined));
    say(byId("active-note"), `of ${asCount(all)}${clients.lost ? `, ${asCount(clients.lost)} lost` : ""}`);
    showHint();
  },
  updates({ updates }) {
    say(byId("accepted"), asCount(updates.accepted));
    say(byId("accepted-note"), updates.pending ? `${asCount(updates.pending)} pending` : "none pending");
    say(byId("rejected"), asCount(updates.rejected));
    say(byId("rejected-note"), updates.duplicate ? counted(updates.duplicate, "duplicate") : "no duplicates");
  },
  curve({ curve, run }) {
    showMeasure(mainChart, "main-metric", 0, curve, run.evaluate_every ?? null);
    showMeasure(secondChart, "second-metric", 1, curve, run.evaluate_every ?? null);
  },
  metrics: ({ metrics }) => showMetrics(metrics),
  staleness({ staleness }) {
    stalenessChart.show(staleness);
    const most = staleness.counts.length - 1;
    say(byId("staleness"), staleness.mean === null ? NONE : asNumber(staleness.mean));
    say(byId("staleness-note"), most < 0 ? "no round yet" : `rounds, at most ${asCount(most)}${most >= staleness.bounded_at ? " or more" : ""}`);
  },
  rounds({ rounds }) {
    phasesChart.show(rounds);
    lastRounds.show(rounds);
    const line = (part, index) => legendLine(index, PHASES[part], asTime(mean(rounds.map((round) => round.phases_s[part]))));
    byId("phases-legend").replaceChildren(...(rounds.length ? PARTS.map(line) : []));
    show.compensation(told);
  },
  rejections: ({ rejections }) => showRejections(rejections),
  compensation({ compensation, rounds }) {
    const measured = rounds.filter((round) => Object.keys(round.errors).length);
    compensationChart.show({ rounds: measured, compensates: compensation !== null });
    const line = (method, index) => legendLine(index, methodName(method), `L1 ${asNumber(mean(measured.map((round) => round.errors[method]?.l1 ?? null)))}`);
    byId("compensation-legend").replaceChildren(...methodsOf(measured).map(line));
    const sum = (counts) => Object.entries(counts).map(([name, number]) => `${asCount(number)} by ${name}`).join(", ");
    const { methods = {}, fallbacks = {} } = compensation ?? {};
    const gaveUp = Object.entries(fallbacks).map(([reason, number]) => `${asCount(number)} (${reason})`).join(", ");
    say(byId("compensation-note"), [Object.keys(methods).length ? `Compensated: ${sum(methods)}.` : "", gaveUp ? `Fallbacks: ${gaveUp}.` : ""].join(" ").trim());
  },
};

function showHint() {
  const { run, clients, state, updates } = told;
  const joined = ACTIVE.reduce((sum, name) => sum + (clients[name] ?? 0), 0);
  const hints = {
    gathering: `${asCount(joined)} of the ${asCount(run.clients_to_start)} clients that the run needs to start have joined.`,
    idle: "No client is available for the next round.",
    running: updates.accepted || state.version ? parted(`${run.policy} on ${run.data}`, `model ${run.model}`, `trigger ${run.trigger}`) : "The first tasks are out; no update has come back yet.",
    finished: "All rounds are complete.",
    reached: "The metric that run.until names has reached its value, and has ended the run.",
    stopped: "The server was stopped before the last round. With a run directory, the same command resumes the run.",
  };
  say(byId("hint"), state.alarm ?? hints[state.standing] ?? "");
}

/** What does not wait for the server: the clock, and how the link stands. */
function showLink() {
  const standing = told?.state.standing;
  const over = OVER.includes(standing);
  const gone = link === "lost" && !over;
  byId("state").dataset.state = gone ? "lost" : (standing ?? "loading");
  say(byId("state-text"), gone ? "Server not reachable" : (STANDING[standing] ?? "Connecting"));
  const banner = byId("banner");
  const texts = {
    lost: over ? "The server has ended. This is its last state." : "The server is not reachable: reconnecting. This is its last state.",
    polling: `Not live: too many pages are open, or a proxy buffers the events. This page polls every ${AGAIN_S} seconds.`,
  };
  const text = texts[link] ?? (paused ? "Paused. The run continues." : "");
  banner.classList.toggle("calm", !gone);
  say(banner, text);
  banner.hidden = !text;
}

function tick() {
  if (stream && now_s() - quiet_s > (spoke ? SILENT_S : FIRST_S)) ask();
  if (!told || paused) return;
  const goes = ["running", "idle"].includes(told.state.standing) && link !== "lost" && heard.elapsed_s !== null;
  const since = goes ? now_s() - heard.at : 0;
  say(byId("elapsed"), asClock(heard.elapsed_s === null ? null : heard.elapsed_s + since));
  const lastRound = told.rounds.at(-1);
  const passed = lastRound && heard.elapsed_s !== null ? heard.elapsed_s + since - lastRound.at_s : 0;
  const left = told.state.left_s;
  say(byId("left"), left === null ? (OVER.includes(told.state.standing) ? asClock(0) : NONE) : asClock(Math.max(0, left - passed)));
}

function draw() {
  drawing = false;
  if (paused || !told) return;
  const sections = stale;
  stale = new Set();
  for (const name of Object.keys(show)) if (sections.has(name)) show[name](told);
  tick();
}

function drawSoon() {
  if (!drawing && !paused) requestAnimationFrame(draw);
  drawing ||= !paused;
}

/** Also while nobody sees the page, and nothing on it is drawn. */
function showTitle() {
  if (!told || paused) return;
  const { run, state } = told;
  const share = run.rounds ? Math.floor((100 * state.version) / run.rounds) : 0;
  document.title = `${state.standing === "running" ? `${share}${NARROW}%` : STANDING[state.standing]} · unstale`;
}

// --- told ---

function take({ elapsed_s, ...sections }, kind) {
  told = kind === "snapshot" ? sections : { ...told, ...sections };
  for (const name of Object.keys(sections)) stale.add(name);
  heard = { at: now_s(), elapsed_s };
  link = kind === "polled" && !document.hidden ? "polling" : "live";
  showTitle();
  drawSoon();
  showLink();
}

/** Nothing is listened to and nothing planned, but what is planned now. */
function plan(action, after_s) {
  stream?.close();
  stream = null;
  clearTimeout(again);
  again = setTimeout(action, 1000 * after_s);
}

/** Live, while somebody sees the page. */
function follow() {
  stream?.close();
  clearTimeout(again);
  stream = new EventSource("events");
  [spoke, quiet_s] = [false, now_s()];
  for (const kind of ["snapshot", "change", "alive"]) {
    stream.addEventListener(kind, (event) => {
      [spoke, quiet_s] = [true, now_s()];
      take(JSON.parse(event.data), kind);
    });
  }
  stream.addEventListener("error", ({ target }) => {
    if (target.readyState === EventSource.CLOSED) return ask();
    [spoke, quiet_s] = [false, now_s()];
    link = "lost"; // the browser tries again by itself
    showLink();
  });
}

/** Where nothing comes by the stream, there is still an answer to be had. */
function ask() {
  plan(follow, AGAIN_S);
  poll();
}

/** Now and then, for the title: a browser has few connections to one server, and the server few streams. */
function rest() {
  plan(() => {
    poll();
    rest();
  }, HIDDEN_S);
}

async function poll() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(1000 * AGAIN_S) });
    if (!answer.ok) throw new Error(answer.statusText);
    take(await answer.json(), "polled");
  } catch {
    link = "lost";
    showLink();
  }
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  showLink();
  showTitle();
  drawSoon();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) rest();
  else follow();
});

setInterval(tick, 1000);
if (document.hidden) {
  poll();
  rest();
} else {
  follow();
}
