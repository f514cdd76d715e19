// Accessibility defects of the page, as sentences; tests expect none. Source: WCAG 2.2, levels A and AA.
() => {
  const found = [];
  const seen = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const where = (element) => `<${element.tagName.toLowerCase()}${element.id ? ` id=${element.id}` : ""} class=${element.getAttribute("class")}>`;
  const nameOf = (element) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    return (element.getAttribute("aria-label") ?? element.textContent).trim();
  };

  for (const element of all("a[href], button, summary, input, select, progress, [tabindex='0'], [role='slider'], section, nav")) {
    if (!nameOf(element)) found.push(`${where(element)} has no name`);
  }
  for (const element of all("a[href], button, summary")) {
    const { width, height } = element.getBoundingClientRect();
    if (height < 24 || width < 24) found.push(`${where(element)} is too small to touch: ${width} x ${height}`);
  }
  for (const element of document.querySelectorAll("[aria-labelledby], [aria-controls], [aria-describedby]")) {
    for (const name of ["aria-labelledby", "aria-controls", "aria-describedby"]) {
      for (const id of (element.getAttribute(name) ?? "").split(" ").filter(Boolean)) {
        if (!document.getElementById(id)) found.push(`${where(element)}: there is no ${id}`);
      }
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) found.push(`there are two ${id}`);

  const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((heading) => Number(heading.tagName[1]));
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) found.push(`headings are ${levels}`);
  levels.forEach((level, index) => {
    if (index && level > levels[index - 1] + 1) found.push(`a heading of level ${level} follows one of ${levels[index - 1]}`);
  });
  for (const landmark of ["header", "main", "footer"]) {
    if (document.querySelectorAll(`body > ${landmark}`).length !== 1) found.push(`there is not one ${landmark}`);
  }
  if (!document.documentElement.lang) found.push("no language");
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption?.textContent.trim()) found.push(`${where(table)} has no caption`);
    for (const head of table.querySelectorAll("th")) if (!head.scope) found.push(`${where(table)}: a heading without scope`);
  }
  for (const image of document.querySelectorAll("svg, img")) {
    if (!image.closest("[aria-hidden='true']") && !image.getAttribute("aria-label") && !image.getAttribute("alt")) found.push(`${where(image)} has no name`);
  }
  for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) found.push(`${where(element)} jumps the queue`);
  for (const hidden of document.querySelectorAll("[aria-hidden='true'] :is(a, button, [tabindex='0'])")) found.push(`${where(hidden)} is hidden, and takes the focus`);

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const mixed = new Map();
  const colour = (text, under) => {
    const key = `${text} on ${under}`;
    if (!mixed.has(key)) mixed.set(key, mix(text, under));
    return mixed.get(key);
  };
  const mix = (text, under) => {
    canvas.clearRect(0, 0, 1, 1);
    if (under) {
      canvas.fillStyle = `rgb(${under.join(" ")})`;
      canvas.fillRect(0, 0, 1, 1);
    }
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(getComputedStyle(at).backgroundColor);
    return layers.reverse().reduce((under, layer) => colour(layer, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !seen(element) || element.closest("script, style, .hidden")) continue;
    const style = getComputedStyle(element);
    const under = ground(element);
    const [dark, bright] = [light(colour(element instanceof SVGElement ? style.fill : style.color, under)), light(under)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (contrast < least) found.push(`${where(element)} "${texts.currentNode.data.trim()}" has contrast ${contrast.toFixed(2)}, expected ${least}`);
  }
  for (const card of all(".card, .tile")) {
    const { right } = card.getBoundingClientRect();
    for (const element of card.querySelectorAll("*")) {
      const inside = seen(element) && !element.closest(".scroll, .hidden, svg, .plot");
      if (inside && element.getBoundingClientRect().right > right) found.push(`${where(element)} sticks out of ${where(card)}`);
    }
  }
  if (document.documentElement.scrollWidth > window.innerWidth) found.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${window.innerWidth}`);
  return found;
}
