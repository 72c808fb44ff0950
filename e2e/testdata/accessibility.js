// What a test asks a page in a browser about: what it finds is returned in words.
globalThis.accessibility = (() => {

// channels reads rgb(1, 2, 3) and rgba(1, 2, 3, 0.4).
function channels(color) {
  const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
  return [r, g, b, a];
}

// over is a colour painted over an opaque one.
function over([r, g, b, a], [R, G, B]) {
  return [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
}

// groundOf is the opaque colour behind an element's text.
function groundOf(element) {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(channels(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((ground, layer) => over(layer, ground), [255, 255, 255, 1]);
}

// contrast is that of WCAG 2.2, 1.4.3.
function contrast(one, other) {
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function shows(element) {
  const box = element.getBoundingClientRect();
  return box.width > 1 && box.height > 1 && getComputedStyle(element).visibility === "visible";
}

function name(element) {
  return `<${element.localName}> ${(element.innerText || element.name || element.id || "").trim().slice(0, 40)}`;
}

const controls = () => [...document.querySelectorAll("input:not([type=hidden]), select, textarea")];

function report() {
  const faults = [];
  const check = (what, color, ground) => {
    const ratio = contrast(over(channels(color), ground), ground);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)} of ${what}`);
  };
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !shows(element) || element.closest("option")) continue;
    texts++;
    check(name(element), getComputedStyle(element).color, groundOf(element));
  }
  for (const control of controls()) {
    if (control.labels.length === 0 || ![...control.labels].every(shows)) faults.push(`${name(control)} has no label that is seen`);
    check(name(control), getComputedStyle(control).color, groundOf(control));
    if (control.placeholder) check(`placeholder of ${name(control)}`, getComputedStyle(control, "::placeholder").color, groundOf(control));
    const edge = contrast(channels(getComputedStyle(control).borderTopColor), groundOf(control.parentElement));
    if (edge < 3) faults.push(`contrast ${edge.toFixed(2)} of the edge of ${name(control)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than the window");
  return JSON.stringify({ texts, controls: controls().length, faults });
}

// A tour goes through the page with the tab key.
const stops = () => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, [tabindex='0']")];
const reached = new Set();

// begin begins one, and returns how many stops there are, with the page itself: the
// browser goes on behind what had the focus last.
function begin() {
  reached.clear();
  document.activeElement.blur();
  document.getSelection().empty();
  return stops().length + 1;
}

// stop says what is wrong with the stop that has the focus.
function stop() {
  const element = document.activeElement;
  if (element === document.body) return "";
  reached.add(element);
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) return `${name(element)} does not show that it has the focus`;
  const ratio = contrast(channels(style.outlineColor), groundOf(element.parentElement));
  if (ratio < 3) return `contrast ${ratio.toFixed(2)} of the focus of ${name(element)}`;
  if (box.bottom < 0 || box.top > innerHeight) return `${name(element)} has the focus out of sight`;
  return "";
}

// missed are the stops that the tour has not come to.
const missed = () => stops().filter((e) => !reached.has(e)).map(name).join(", ");

return { report, begin, stop, missed };

})();
