"use strict";
// What the page computes; `dpmech.reports.previews.Preview.at` says the same in Python.

// The noise of the next smaller eps: always enough, as less noise is never more private.
function gridAt(data, variant, eps) {
  const grid = variant.grid === null ? data.shared : variant.grid;
  if (!(eps >= grid.eps[0] && eps <= Math.min(data.high, grid.eps[grid.eps.length - 1]))) return null;
  let low = 0, high = grid.eps.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (grid.eps[middle] <= eps) low = middle; else high = middle;
  }
  return variant.scale * grid.sigma[low];
}

// The strategy of a row with the smallest error at an eps, and its sigma; null if it has none there.
function variantAt(data, row, eps) {
  let best = null;
  for (const variant of row.variants) {
    const sigma = gridAt(data, variant, eps);
    if (sigma !== null && (best === null || sigma * variant.rmse < best.sigma * best.variant.rmse)) {
      best = {variant, sigma};
    }
  }
  return best;
}

function numberAt(data, row, eps, measure) {
  const best = variantAt(data, row, eps);
  if (best === null) return null;
  return measure === "sigma" ? best.sigma : best.sigma * best.variant[measure];
}

// Rounded up, or down, to so many digits.
function rounded(value, digits, upward) {
  const [figures, power] = value.toExponential().split("e");
  const scaled = Number(figures + "e" + (digits - 1));
  const whole = upward ? Math.ceil(scaled) : Math.floor(scaled);
  return String(Number(whole + "e" + (Number(power) - digits + 1)));
}

function planOf(data, epochs, batch) {
  return data.plans.find(one => one.epochs === epochs && one.batch_size === batch);
}

function commandOf(data, plan, row, eps) {
  const best = variantAt(data, row, eps);
  if (best === null) return "";
  const words = best.variant.options.map(([name, value]) => value === "" ? name : name + " " + value);
  return ["dpmech calibrate", ...words, "--dataset-size " + data.dataset_size,
    "--batch-size " + plan.batch_size, "--epochs " + plan.epochs,
    "--eps " + eps, "--delta " + data.delta, "--out certificate.json"].join(" ");
}

function startPlanner() {
  const byId = name => document.getElementById(name);
  const data = JSON.parse(byId("data").textContent);
  const fields = {eps: byId("eps"), epochs: byId("epochs"), batch: byId("batch"), measure: byId("measure"),
    strategy: byId("strategy")};
  const fill = (select, values) => values.forEach(([value, text]) => select.add(new Option(text, value)));
  const distinct = name => [...new Set(data.plans.map(one => one[name]))].sort((a, b) => a - b);
  const labels = data.plans[0].rows.map(row => row.label);
  fill(fields.epochs, distinct("epochs").map(one => [one, one]));
  fill(fields.batch, distinct("batch_size").map(one => [one, one]));
  fill(fields.strategy, labels.map((label, place) => [place, label]));
  fields.epochs.selectedIndex = Math.floor((fields.epochs.length - 1) / 2);
  fields.batch.selectedIndex = Math.floor((fields.batch.length - 1) / 2);
  let chosenByHand = false;

  const element = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Both axes are logarithmic; ticks are at 1, 2 and 5 times a power of ten, or where they are given.
  function draw(svg, series, ticksAcross, now, nameAcross, nameUp) {
    const left = 84, right = 624, top = 40, bottom = 296;
    const points = series.flat().filter(([, y]) => y !== null && y > 0);
    svg.replaceChildren();
    if (!points.length) return;
    const span = values => [Math.min(...values), Math.max(...values)].map(Math.log);
    const [x0, x1] = span(points.map(([x]) => x)), ends = span(points.map(([, y]) => y));
    const y0 = ends[0] - 0.06 * (ends[1] - ends[0]), y1 = ends[1] + 0.04 * (ends[1] - ends[0]);
    const across = x => left + (right - left) * (x1 > x0 ? (Math.log(x) - x0) / (x1 - x0) : 0.5);
    const upward = y => bottom - (bottom - top) * (y1 > y0 ? (Math.log(y) - y0) / (y1 - y0) : 0.5);
    const inside = (value, [low, high]) => Math.log(value) >= low - 1e-9 && Math.log(value) <= high + 1e-9;
    const usual = [];
    for (let power = -8; power <= 8; power++) for (const one of [1, 2, 5]) usual.push(Number(one + "e" + power));
    let ups = usual.filter(one => inside(one, [y0, y1]));
    if (ups.length < 3) {
      for (let power = -8; power <= 8; power++) for (const one of [1.5, 3, 4, 6, 7, 8]) usual.push(Number(one + "e" + power));
      ups = usual.filter(one => inside(one, [y0, y1]));
    }
    const shownUps = ups.length > 7 ? ups.filter(one => String(one).replace(/[.0e-]/g, "")[0] === "1") : ups;
    for (const tick of shownUps) {
      svg.append(element("line", {class: "grid", x1: left, x2: right, y1: upward(tick), y2: upward(tick)}),
        element("text", {x: left - 8, y: upward(tick) + 6, "text-anchor": "end"}, String(tick)));
    }
    const ticks = (ticksAcross || [1, 2, 5].flatMap(one => [-2, -1, 0, 1, 2].map(power => Number(one + "e" + power)))
      .sort((a, b) => a - b)).filter(one => inside(one, [x0, x1]));
    let reached = -Infinity;
    for (const tick of ticks) {
      svg.append(element("line", {class: "grid", x1: across(tick), x2: across(tick), y1: top, y2: bottom}));
      if (across(tick) - reached < 72) continue;
      reached = across(tick);
      const anchor = reached > right - 30 ? "end" : "middle";
      svg.append(element("text", {x: reached, y: bottom + 27, "text-anchor": anchor}, String(tick)));
    }
    if (now !== null && inside(now, [x0, x1])) {
      svg.append(element("line", {class: "now", x1: across(now), x2: across(now), y1: top, y2: bottom}));
    }
    svg.append(element("text", {x: left, y: top - 14}, nameUp),
      element("text", {x: (left + right) / 2, y: bottom + 56, "text-anchor": "middle"}, nameAcross));
    series.forEach((one, place) => {
      const known = one.filter(([, y]) => y !== null);
      const path = known.map(([x, y]) => across(x).toFixed(2) + "," + upward(y).toFixed(2)).join(" ");
      svg.append(element("polyline", {class: "series s" + place, points: path}));
      if (known.length < 12) known.forEach(([x, y]) => svg.append(
        element("circle", {class: "series s" + place, cx: across(x), cy: upward(y), r: 4})));
    });
  }

  function show() {
    const eps = fields.eps.valueAsNumber, measure = fields.measure.value;
    const plan = planOf(data, Number(fields.epochs.value), Number(fields.batch.value));
    const base = numberAt(data, plan.rows[0], eps, "rmse");
    const inside = eps >= data.low && eps <= data.high;
    byId("facts").textContent = inside
      ? plan.steps + " steps"
      : "Choose an eps from " + data.low + " to " + data.high + ".";
    if (!chosenByHand && inside) {
      const errors = plan.rows.map(row => numberAt(data, row, eps, "rmse") ?? Infinity);
      fields.strategy.value = String(errors.indexOf(Math.min(...errors)));
    }
    const chosen = Number(fields.strategy.value);
    byId("rows").replaceChildren(...plan.rows.map((row, place) => {
      const line = document.createElement("tr");
      line.className = place === chosen ? "chosen" : "";
      const name = document.createElement("th");
      name.scope = "row";
      name.textContent = row.label;
      line.append(name);
      const rmse = numberAt(data, row, eps, "rmse");
      for (const one of ["sigma", "rmse", "noise"]) {
        const value = numberAt(data, row, eps, one);
        line.insertCell().textContent = value === null ? "none" : rounded(value, 4, true);
      }
      line.insertCell().textContent = base === null || rmse === null || place === 0 ? "" : rounded(base / rmse, 2, false);
      return line;
    }));
    const row = plan.rows[chosen], best = inside ? variantAt(data, row, eps) : null;
    byId("command").textContent = best === null ? "" : commandOf(data, plan, row, eps);
    byId("copy").disabled = best === null;
    byId("cost").textContent = best === null
      ? "No number for " + row.label + (row.reason ? ": " + row.reason : ".")
      : "Vectors of the model's size per step, in addition to the new noise: " + best.variant.buffers + " stored, "
        + best.variant.regenerated + " regenerated. The sigma of the calibration is at most this sigma, and at "
        + "most " + row.above + " % less.";
    const words = fields.measure.selectedOptions[0].textContent;
    const many = Array.from({length: 161}, (_, place) => data.low * (data.high / data.low) ** (place / 160));
    draw(byId("over-eps"), plan.rows.map(one => many.map(x => [x, numberAt(data, one, x, measure)])), null,
      eps, "eps", words);
    const sizes = data.plans.filter(one => one.epochs === plan.epochs);
    draw(byId("over-batch"), labels.map((_, place) => sizes.map(
      one => [one.batch_size, numberAt(data, one.rows[place], eps, measure)])),
      sizes.map(one => one.batch_size), plan.batch_size, "batch size", words);
  }

  labels.forEach((label, place) => {
    const item = document.createElement("li"), svg = element("svg", {viewBox: "0 0 36 12", "aria-hidden": "true"});
    svg.append(element("line", {class: "series s" + place, x1: 0, x2: 36, y1: 6, y2: 6}));
    item.append(svg, label);
    byId("legend").append(item);
  });
  Object.values(fields).forEach(one => one.addEventListener("input", () => {
    chosenByHand = chosenByHand || one === fields.strategy;
    show();
  }));
  document.querySelector("form").addEventListener("submit", event => event.preventDefault());
  byId("copy").addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(byId("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    // Pages from a file may not always write to the clipboard; what is selected can be copied by hand.
    if (navigator.clipboard) navigator.clipboard.writeText(byId("command").textContent).catch(() => {});
  });
  byId("planner").hidden = false;
  show();
}

if (typeof document !== "undefined") startPlanner();
