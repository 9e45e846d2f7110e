// Inspects pages in frames and lists their faults, one per line.
const faults = [];

// A CSS colour as r, g, b, a.
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function colour(text) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}

function luminance([r, g, b]) {
  const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
}

function contrast(a, b) {
  const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
}

function ground(element, view) {
  for (let e = element; e; e = e.parentElement) {
    const c = colour(view.getComputedStyle(e).backgroundColor);
    if (c[3] > 0) return c;
  }
  return [255, 255, 255, 255];
}

function inspect(frame) {
  const name = frame.dataset.name, doc = frame.contentDocument, view = frame.contentWindow;
  const fault = (kind, what) => faults.push(`${kind}: ${name}: ${what}`.replace(/\s+/g, " "));
  if (view.matchMedia("(prefers-color-scheme: dark)").matches !== (frame.dataset.scheme === "dark")) {
    fault("scheme", "not the requested one");
  }
  doc.querySelectorAll("details").forEach((d) => { d.open = true; });

  const root = doc.documentElement;
  if (root.scrollWidth > view.innerWidth) fault("wide", `${root.scrollWidth} > ${view.innerWidth}`);

  const said = doc.body.innerText + [...doc.querySelectorAll("svg title, svg desc")].map((t) => t.textContent).join(" ");
  const bad = said.match(/.{0,30}(\b(NaN|undefined|Infinity|inf|null)\b|\ufffd).{0,30}/);
  if (bad) fault("text", bad[0]);

  const seen = new Map();
  for (const e of doc.querySelectorAll("h1, h2, h3, p, a, li, td, th, dt, dd, summary, small, span, strong, code, figcaption, text")) {
    if (!e.textContent.trim() || e.getClientRects().length === 0) continue;
    const style = view.getComputedStyle(e), drawn = e instanceof view.SVGElement;
    const ink = colour(drawn ? style.fill : style.color);
    const under = ground(e, view);
    const ratio = contrast(ink, under), key = `${ink} on ${under}`;
    if (ratio < 4.5 && !seen.has(key)) {
      seen.set(key, true);
      fault("contrast", `${ratio.toFixed(2)} of ${e.tagName} "${e.textContent.slice(0, 30)}", ${key}`);
    }
  }

  // A table that scrolls keeps its first column in view. Cards have no columns.
  for (const box of doc.querySelectorAll(".box")) {
    const cell = box.querySelector("td");
    if (!cell || box.scrollWidth <= box.clientWidth + 1) continue;
    const style = view.getComputedStyle(cell);
    if (style.position !== "sticky" && style.display !== "block") {
      fault("column", `${box.getAttribute("aria-label")}: the first column scrolls away`);
    }
  }

  let plots = 0;
  for (const svg of doc.querySelectorAll("svg[role=img]")) {
    plots += 1;
    const what = svg.querySelector("title")?.textContent ?? "a plot without a title";
    if (what.startsWith("a plot without")) fault("title", what);
    const box = svg.getBoundingClientRect(), frame = svg.viewBox.baseVal;
    if (box.width < 50 || box.height < 10) fault("size", `${what}: ${box.width} x ${box.height}`);
    const marks = [...svg.querySelectorAll("rect, circle, path, line")].filter((m) => {
      const b = m.getBBox();
      return b.width > 0 || b.height > 0;
    });
    if (!svg.querySelector("rect, circle, path") || marks.length === 0) fault("empty", what);
    for (const m of marks) {
      const b = m.getBBox(), slack = 5;
      if (b.x < -slack || b.y < -slack || b.x + b.width > frame.width + slack || b.y + b.height > frame.height + slack) {
        fault("outside", `${what}: ${m.tagName} at ${b.x}, ${b.y}`);
        break;
      }
    }
    const texts = [...svg.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
    const scale = box.width / frame.width;
    for (const [t, b] of texts) {
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 2 || b.bottom > box.bottom + 2) {
        fault("cut", `${what}: "${t.textContent}"`);
      }
      const size = parseFloat(view.getComputedStyle(t).fontSize) * scale;
      if (size < 8.5) fault("small", `${what}: "${t.textContent}" is ${size.toFixed(1)} px`);
    }
    for (let i = 0; i < texts.length; i += 1) {
      for (let j = i + 1; j < texts.length; j += 1) {
        const [a, b] = [texts[i][1], texts[j][1]];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        // Boxes are higher than their letters.
        if (across > 1 && down > 4 * scale) {
          fault("overlap", `${what}: "${texts[i][0].textContent}" and "${texts[j][0].textContent}"`);
        }
      }
    }
  }
  return `${name}: ${plots} plots, ${view.innerWidth} px`;
}

addEventListener("load", () => {
  const looked = [...document.querySelectorAll("iframe")].map((frame) => {
    try {
      return inspect(frame);
    } catch (why) {
      faults.push(`script: ${frame.dataset.name}: ${why}`);
      return `${frame.dataset.name}: failed`;
    }
  });
  document.body.textContent = "";
  for (const [id, lines] of [["looked", looked], ["faults", faults]]) {
    const pre = document.createElement("pre");
    pre.id = id;
    pre.textContent = lines.join("\n");
    document.body.append(pre);
  }
});
