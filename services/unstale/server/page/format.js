// Numbers and durations as people read them, and elements without a word of HTML: all that is shown is set as text.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NONE = "–"; // en dash: there is no such number
const NARROW = "\u202f"; // between a number and its unit

const asCount = (value) => (value === null ? NONE : whole.format(value));

const asPercent = (share, digits = 1) => (share === null ? NONE : `${(100 * share).toFixed(digits)}${NARROW}%`);

/** Three significant digits, without an exponent where a few zeros do. null: the number was nan or infinite. */
function asNumber(value) {
  if (value === null) return "not finite";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return size >= 1000 ? whole.format(value) : value.toPrecision(3);
}

/** How values of a metric are written: accuracy in percent. */
const asMetric = (name) => (name === "accuracy" ? (share, digits) => (share === null ? "not finite" : asPercent(share, digits)) : asNumber);

/** A metric as a heading: names that are words begin with a capital. */
const asName = (name) => ({ accuracy: "Accuracy", loss: "Loss" })[name] ?? name;

/** Seconds, in the two units that say most. */
function asTime(seconds) {
  if (seconds === null) return NONE;
  if (seconds < 0.0005) return `0${NARROW}ms`;
  if (seconds < 0.00995) return `${(1000 * seconds).toFixed(1)}${NARROW}ms`;
  if (seconds < 0.9995) return `${(1000 * seconds).toFixed(0)}${NARROW}ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)}${NARROW}s`;
  if (seconds < 59.95) return `${seconds.toFixed(1)}${NARROW}s`;
  const two = (value) => String(value).padStart(2, "0");
  const whole_s = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole_s / 86400), Math.floor(whole_s / 3600) % 24, Math.floor(whole_s / 60) % 60];
  if (days) return `${days}${NARROW}d ${two(hours)}${NARROW}h`;
  if (hours) return `${hours}${NARROW}h ${two(minutes)}${NARROW}min`;
  return `${minutes}${NARROW}min ${two(whole_s % 60)}${NARROW}s`;
}

/** The same for what ticks every second: no parts of one. */
const asClock = (seconds) => (seconds !== null && seconds < 59.5 ? `${Math.floor(seconds)}${NARROW}s` : asTime(seconds));

const counted = (number, one, many = `${one}s`) => `${asCount(number)} ${number === 1 ? one : many}`;

const parted = (...parts) => parts.join(" · ");

const byId = (id) => document.getElementById(id);

/** Sets a text, only where it is another: what stays the same is not said again to those who listen. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** An element of HTML. children: elements, and strings as text. */
const html = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);

/** An element of SVG, likewise. */
const svg = (name, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
