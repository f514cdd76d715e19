// What is a table from the start: clients, the last rounds, what was rejected, what runs.

const STATES = {
  working: "Working",
  contributed: "Contributed, wait for the round",
  waiting: "Wait for a task",
  unavailable: "Unavailable",
  lost: "Lost, lease expired",
  left: "Left",
  absent: "Never joined",
};
const ACTIVE = ["working", "contributed", "waiting", "unavailable"];

const ABOUT = {
  policy: "Policy",
  compensator: "Compensator",
  trigger: "Trigger",
  selector: "Selector",
  training: "Local training",
  model: "Model",
  data: "Data set",
  clients: "Clients",
  device: "Device",
};

const REASONS = {
  "expired-task": "too late: its task was taken back",
  "unknown-task": "no such task was given",
  "run-finished": "the run was over",
  "non-finite": "nan or infinity in it",
  "zero-update": "nothing but zeros",
  "norm-too-large": "longer than the run allows",
  "wrong-size": "not the size of the model",
  "wrong-signature": "made for another model",
  "unknown-version": "of a version never given with its task",
  "not-stored": "no room on the server's disk",
  "rate-limited": "more messages than a client may send",
  "hello-first": "from a connection that speaks for no client",
  "not-the-owner": "under a key that does not own the client",
  quarantined: "its client must pause",
  "code-error": "code of its client's user raised",
};

const bar = (share) => {
  const drawn = html("div", { "aria-hidden": "true" });
  drawn.style.width = `${100 * share}%`;
  return drawn;
};

function showClients(clients) {
  const all = Object.values(clients).reduce((a, b) => a + b, 0);
  const line = ([state, name]) => {
    const number = clients[state] ?? 0;
    return html("tr", number ? {} : { class: "zero" }, html("th", { scope: "row" }, name), html("td", {}, asCount(number)), html("td", { class: "bar" }, bar(all ? number / all : 0)));
  };
  byId("clients").querySelector("tbody").replaceChildren(...Object.entries(STATES).map(line));
}

/** The updates of a round: a bar for each, as high as its weight, paler the staler. */
function strip({ staleness, weights }) {
  const [width, height] = [9, 22];
  const most = Math.max(...weights.map((weight) => Math.abs(weight ?? 0))) || 1;
  const drawn = svg("svg", { class: "strip", width: width * weights.length, viewBox: `0 0 ${width * weights.length} ${height}`, "aria-hidden": "true" });
  drawn.append(svg("line", { x1: 0, x2: width * weights.length, y1: height - 0.5, y2: height - 0.5, class: "base" }));
  weights.forEach((weight, place) => {
    const tall = Math.max(1.5, (Math.abs(weight ?? 0) / most) * (height - 2));
    const opacity = 1 / (1 + 0.2 * Math.min(staleness[place], 6));
    drawn.append(svg("rect", { x: width * place + 1, width: width - 2, y: height - 1 - tall, height: tall, rx: 1, opacity: opacity.toFixed(2) }));
  });
  return drawn;
}

const took = ({ phases_s }) => phases_s.wait + phases_s.compensate + phases_s.aggregate;

function roundLine(round) {
  const { version, updates, staleness, weights } = round;
  const left = updates - weights.length;
  const spread = updates ? `${asNumber(round.staleness_mean)} (at most ${asCount(round.staleness_max)})` : NONE;
  const item = (weight, place) => html("li", {}, html("b", {}, asNumber(weight)), ` ${staleness[place] ? counted(staleness[place], "round") + " late" : "fresh"}`);
  const cell = html("td", { class: "updates" });
  if (updates) {
    const summary = html("summary", { "aria-label": `${counted(updates, "update")} of round ${version}` }, strip(round), html("span", { class: "more" }, counted(updates, "update")));
    const others = left ? [html("li", {}, `and ${asCount(left)} more`)] : [];
    cell.append(html("details", {}, summary, html("ol", {}, ...weights.map(item), ...others)));
  } else {
    cell.append(html("span", { class: "more" }, "no updates"));
  }
  if (round.overflowed) cell.append(html("span", { class: "mark-bad" }, "overflowed: not applied"));
  const texts = [spread, asTime(took(round)), asTime(round.at_s)];
  return html("tr", {}, html("th", { scope: "row" }, asCount(version)), cell, ...texts.map((text) => html("td", {}, text)));
}

/** A line stays as it is while its round does, so that what was opened stays open. */
class LastRounds {
  constructor() {
    this.body = byId("last").querySelector("tbody");
    this.lines = new Map();
  }

  show(rounds) {
    byId("last-empty").hidden = rounds.length > 0;
    byId("last-scroll").hidden = rounds.length === 0;
    const lines = new Map();
    for (const round of rounds) {
      const { phases_s: _, errors: __, ...shown } = round;
      const key = JSON.stringify({ ...shown, took: took(round) });
      const before = this.lines.get(round.version);
      lines.set(round.version, before?.key === key ? before : { key, element: roundLine(round) });
    }
    for (const [version, { element }] of this.lines) {
      if (lines.get(version)?.element !== element) element.remove();
    }
    let next = this.body.firstChild;
    for (const { element } of [...lines.values()].reverse()) {
      if (element === next) next = next.nextSibling;
      else this.body.insertBefore(element, next);
    }
    this.lines = lines;
  }
}

function showRejections({ updates, messages, tasks, quarantines }) {
  const counts = [updates, messages, tasks];
  const sum = (reason) => counts.reduce((total, of) => total + (of[reason] ?? 0), 0);
  const reasons = [...new Set(counts.flatMap(Object.keys))].sort((a, b) => sum(b) - sum(a) || (a < b ? -1 : 1));
  const line = (reason) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, html("span", { class: "code" }, reason), ...(reason in REASONS ? [html("span", { class: "says" }, REASONS[reason])] : [])),
      ...counts.map((of) => html("td", {}, asCount(of[reason] ?? 0))),
    );
  byId("rejections-empty").hidden = reasons.length > 0;
  byId("rejections").hidden = reasons.length === 0;
  byId("rejections").querySelector("tbody").replaceChildren(...reasons.map(line));
  say(byId("quarantines"), quarantines ? `${counted(quarantines, "time")} a client was quarantined.` : "");
}

function showAbout(run, digest) {
  const facts = Object.entries(ABOUT).map(([key, name]) => html("div", {}, html("dt", {}, name), html("dd", {}, String(run[key] ?? NONE))));
  if (digest) facts.push(html("div", { class: "whole" }, html("dt", {}, "Digest of the last model (SHA-256)"), html("dd", { class: "code" }, digest)));
  byId("about").replaceChildren(...facts);
}
