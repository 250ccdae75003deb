// Makes and updates elements. Text only ever enters as text: route names come from Kafka.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`class`, `title`, …; null and false are left out) and children (nodes or text). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Change text only when it differs, so that selections and screen readers are left in peace. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set, or with null remove, an attribute. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Make `parent` hold exactly `children`, in order, moving only what has to move: focus survives a refresh. */
export function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, at) => {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  });
}
