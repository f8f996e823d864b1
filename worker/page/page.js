// The form is made from the JSON schema of a job's fields; what runs is the job that is shown for copying.

const POLL_MS = 150;
const SMALL_PX = 128;
const LONG_TEXT = 1000; // Text that may be longer has several lines.
const CUT = 80; // Characters of a text in the job that is shown, such as those of a picture.

// Only the order: fields that stand here come first, all others under "More settings".
const FIRST = [
  "prompt", "negative_prompt", "num_inference_steps", "guidance_scale", "width", "height", "seed", "num_images", "scheduler",
];

const byId = (id) => document.getElementById(id);
const elements = Object.fromEntries(
  ["form", "first", "more", "make", "cancel", "keep", "pictures", "progress", "error", "caption", "call", "copy", "gallery", "earlier", "model"].map(
    (id) => [id, byId(id)],
  ),
);
const widgets = new Map(); // Field -> {element, read}; read gives undefined where the job leaves the field out.
let running = null; // The id of the job that runs.

async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, body === undefined ? {} : post);
  const read = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(`${answer.status}: ${JSON.stringify(read.detail ?? answer.statusText)}`);
  return read;
}

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// --- The form -------------------------------------------------------------------------------------------------------

function title(name) {
  const words = name.replace(/^num_/, "").replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

// The schema of the value itself: fields that may be absent are anyOf [value, null].
const valueOf = (schema) => schema.anyOf?.[0] ?? schema;

function widgetOf(name, schema) {
  const value = valueOf(schema);
  const choices = value.enum ?? schema.enum ?? schema.examples;
  if (choices) return choice(schema, choices, value.type);
  if (value.type === "boolean") return checkbox(schema);
  if (value.type === "integer" || value.type === "number") return number(schema, value);
  if (schema.contentMediaType) return picture(schema);
  if (value.type === "string") return text(value);
  return structure();
}

function text(value) {
  const long = value.maxLength >= LONG_TEXT;
  const input = make(long ? "textarea" : "input", { maxLength: value.maxLength ?? -1 });
  if (long) input.rows = 2;
  return { wide: long, input, read: () => input.value || undefined };
}

function choice(schema, choices, type) {
  const input = make("select", {}, ...choices.map((one) => new Option(one, one, one === schema.default, one === schema.default)));
  return { input, read: () => (type === "string" ? input.value : Number(input.value)) };
}

function checkbox(schema) {
  const input = make("input", { type: "checkbox", defaultChecked: schema.default });
  return { input, read: () => input.checked };
}

function number(schema, value) {
  const { minimum, maximum } = value;
  const whole = value.type === "integer" && (value.multipleOf ?? 1);
  const input = make("input", { type: "number", min: minimum, max: maximum ?? "", step: whole || "any" });
  const read = () => (input.value === "" ? undefined : Number(input.value));
  if (schema.default == null || maximum === undefined) {
    input.placeholder = "auto";
    return { input, read };
  }
  input.defaultValue = schema.default;
  // The whole range would make a slider coarse: its end is some way beyond the default, the box takes the rest.
  const end = schema.default > 0 ? Math.min(maximum, 4 * schema.default) : maximum;
  const slider = make("input", { type: "range", min: minimum, max: end, step: whole || (end > 1 ? 0.1 : 0.05) });
  slider.setAttribute("value", schema.default);
  slider.oninput = () => (input.value = slider.value);
  input.oninput = () => (slider.value = input.value);
  return { input, slider, read };
}

function picture() {
  const input = make("input", { type: "file", accept: "image/*" });
  const shown = make("img", { hidden: true, alt: "" });
  let url;
  const clear = () => ((url = undefined), (shown.hidden = true));
  input.onchange = () => {
    clear();
    if (!input.files[0]) return refresh();
    const reader = new FileReader();
    reader.onload = () => {
      url = shown.src = reader.result;
      shown.hidden = false;
      refresh();
    };
    reader.readAsDataURL(input.files[0]);
  };
  return { wide: true, input, after: shown, clear, read: () => url };
}

function structure() {
  const input = make("input", { placeholder: "JSON" });
  const read = () => {
    if (!input.value) return undefined;
    try {
      return JSON.parse(input.value);
    } catch {
      return input.value; // The worker says what is wrong with it.
    }
  };
  return { input, read };
}

function build(fields) {
  for (const name of [...FIRST, ...Object.keys(fields)]) {
    const schema = fields[name];
    if (!schema || schema.deprecated || widgets.has(name)) continue;
    const { input, slider, after, wide, clear, read } = widgetOf(name, schema);
    const first = FIRST.includes(name);
    input.id = input.name = name;
    const head = make("div", { className: "head" }, make("label", { htmlFor: name, textContent: title(name) }));
    const element = make("div", { className: wide ? "field wide" : "field", title: first ? schema.description : "" }, head);
    if (slider) {
      slider.setAttribute("aria-label", title(name));
      head.append(input);
      element.append(slider);
    } else element.append(input);
    if (after) element.append(after);
    if (!first) element.append(make("small", { textContent: schema.description }));
    elements[first ? "first" : "more"].append(element);
    widgets.set(name, { element, input, clear, read: () => (read() === schema.default ? undefined : read()) });
  }
  byId("prompt").required = true;
}

function job() {
  const entries = [...widgets].map(([name, widget]) => [name, widget.read()]);
  return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
}

// --- The job as a call ----------------------------------------------------------------------------------------------

function call(input) {
  const kind = document.querySelector("input[name=call]:checked").value;
  if (kind === "json") return JSON.stringify({ input }, null, 2);
  const data = JSON.stringify({ input }).replaceAll("'", "'\\''");
  const [url, key] =
    kind === "here" ? [location.origin, ""] : ["https://api.runpod.ai/v2/ENDPOINT_ID", ` \\\n  -H "Authorization: Bearer $RUNPOD_API_KEY"`];
  return `curl -s ${url}/runsync${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '${data}'`;
}

function refresh() {
  const short = (value) => (typeof value === "string" && value.startsWith("data:") ? `${value.slice(0, CUT)}...` : value);
  elements.call.textContent = call(Object.fromEntries(Object.entries(job()).map(([name, value]) => [name, short(value)])));
}

async function copy() {
  try {
    await navigator.clipboard.writeText(call(job()));
    elements.copy.textContent = "Copied";
  } catch {
    // Browsers give the clipboard to trustworthy addresses alone.
    getSelection().selectAllChildren(elements.call);
    elements.copy.textContent = "Selected";
  }
  setTimeout(() => (elements.copy.textContent = "Copy"), 1500);
}

// --- Running --------------------------------------------------------------------------------------------------------

function show(urls, caption, seed) {
  const shown = urls.map((src, i) => {
    const img = make("img", { src, alt: `Picture ${i + 1}: ${caption}` });
    img.onload = () => img.classList.toggle("small", img.naturalWidth <= SMALL_PX);
    return img;
  });
  elements.pictures.replaceChildren(...shown);
  elements.caption.textContent = caption;
  elements.keep.hidden = seed === undefined;
  elements.keep.textContent = `Use seed ${seed}`;
  elements.keep.onclick = () => {
    byId("seed").value = seed;
    refresh();
  };
}

function fail(message) {
  elements.error.textContent = message;
  elements.error.hidden = !message;
  const problems = message.split("; ");
  for (const [name, { element }] of widgets) element.classList.toggle("wrong", problems.some((one) => one.split(":")[0].split(/[,.[ ]+/).includes(name)));
}

// A picture in a local folder has an address here; others have their own.
const address = (place) => (/^(https?|data):/.test(place) ? place : `/output/${place.split(/[\\/]/).slice(-2).join("/")}`);

function finish({ output, status, error }) {
  if (status === "CANCELLED") return fail("Cancelled.");
  if (status !== "COMPLETED") return fail(error);
  const { used, timings, warnings, seed, pictures } = output;
  const facts = [
    `${pictures[0].width}x${pictures[0].height}`, `seed ${seed}`, `${used.num_inference_steps} steps`, `guidance ${used.guidance_scale}`,
    used.scheduler, `${timings.total_s.toFixed(1)} s`,
  ];
  show(output.images.map(address), [facts.join(", "), ...warnings].join("\n"), seed);
}

async function run(event) {
  event.preventDefault();
  fail("");
  busy(true);
  try {
    running = (await ask("/run", { input: { ...job(), preview: true } })).id;
    let state;
    while ((state = await ask(`/status/${running}`)).status === "IN_PROGRESS") {
      const { progress, preview } = state.output ?? {};
      if (progress) elements.progress.value = progress;
      if (preview) show([preview], "Preview");
      await new Promise((done) => setTimeout(done, POLL_MS));
    }
    finish(state);
    await list();
  } catch (error) {
    fail(error.message);
  } finally {
    running = null;
    busy(false);
  }
}

function busy(is) {
  elements.make.disabled = is;
  elements.cancel.hidden = elements.progress.hidden = !is;
  elements.progress.removeAttribute("value"); // Until the first report: the size may be compiling.
}

async function list() {
  const found = await ask("/output");
  elements.earlier.hidden = !found.length;
  elements.gallery.replaceChildren(
    ...found.map(({ url, parameters }) => {
      const picture = make("img", { src: url, alt: parameters.split("\n")[0] || url, loading: "lazy" });
      const button = make("button", { type: "button", title: parameters || url }, picture);
      button.onclick = () => show([url], parameters || url, parameters.match(/\bSeed: (\d+)/)?.[1]);
      return button;
    }),
  );
}

// --- Start ----------------------------------------------------------------------------------------------------------

async function start() {
  const { model, fields } = await ask("/options");
  elements.model.textContent = model.revision ? `${model.source} @ ${model.revision}` : model.source;
  build(fields);
  refresh();
  document.addEventListener("input", refresh);
  elements.form.addEventListener("submit", run);
  elements.form.addEventListener("reset", () => {
    for (const { clear } of widgets.values()) clear?.();
    setTimeout(refresh);
  });
  elements.cancel.onclick = () => running && ask(`/cancel/${running}`, {});
  elements.copy.onclick = copy;
  await list();
}

start().catch((error) => fail(error.message));
