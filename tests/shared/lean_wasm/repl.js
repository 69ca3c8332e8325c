// Lean's REPL (github.com/leanprover-community/repl) with the Lean of build/lean, in Node.
//
//     node repl.js FOLDER
//
// One JSON command {"cmd", "env"} and an empty line on the standard input; one JSON answer
// {"env", "messages"} and an empty line on the standard output. An environment is the text that
// made it, so a process that answers many commands keeps only the imports in memory.
"use strict";
const fs = require("fs");
const path = require("path");
const threads = require("worker_threads");

const folder = fs.realpathSync(process.argv[2]);
const write = fs.writeSync.bind(fs);

// Whatever Lean prints goes here and not between the answers.
let printed = "";
fs.writeSync = (file, text) => {
  if (file !== 1) return write(file, text);
  printed += text;
  return text.length;
};
console.log = () => {};
threads.Worker = class extends threads.Worker {
  constructor(script, options) {
    super(script, { ...options, stdout: true });
    this.on("error", fail);
  }
};
function fail(error) {
  write(2, String(error).slice(0, 600) + "\n");
  process.exit(1);
}
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);

process.argv.length = 2;
const lean = require(path.join(folder, "lean.js"));
lean.noInitialRun = true;
lean.preRun = [
  () => {
    lean.FS.mkdirTree(folder);
    lean.FS.mount(lean.FS.filesystems.NODEFS, { root: folder }, folder);
    lean.ENV.LEAN_PATH = path.join(folder, "lib", "lean");
  },
];
lean.onRuntimeInitialized = () => {
  try {
    main(lean.wasmExports);
  } catch (error) {
    fail(error && error.stack ? error.stack.slice(0, 600) : error);
  }
};

// Lean's objects (lean.h), 32 bits: a header of 8 bytes (count of references, size, number of
// fields, tag), then the fields. An odd number is a value that needs no object.
const BOX0 = 1;
const NO_ARTIFACTS = 3;
const AXIOMS = new Set([
  "propext", "Classical.choice", "Quot.sound", "sorryAx", "Lean.trustCompiler",
  "Lean.ofReduceBool", "Lean.ofReduceNat",
]);
const PRIVATE_LEVEL = 2; // of imports: that of a file that is no `module`
const words = () => new Int32Array(lean.wasmMemory.buffer);
const field = (object, n) => words()[(object >> 2) + 2 + n];
const tag = (object) => (object & 1 ? object >> 1 : new Uint8Array(words().buffer)[object + 7]);
function keep(object) {
  if (object & 1) return object;
  const count = words()[object >> 2];
  if (count > 0) words()[object >> 2] = count + 1;
  else if (count < 0) Atomics.sub(words(), object >> 2, 1); // shared between threads
  return object;
}
function release(object) {
  if (object & 1) return;
  const count = words()[object >> 2];
  if (count > 1) words()[object >> 2] = count - 1;
  else if (count !== 0) lean.wasmExports.lean_dec_ref_cold(object);
}
function toLean(text) {
  const bytes = Buffer.from(text + "\0", "utf8");
  const address = lean.wasmExports.malloc(bytes.length);
  Buffer.from(words().buffer).set(bytes, address);
  const object = lean.wasmExports.lean_mk_string(address);
  lean.wasmExports.free(address);
  return object;
}
function toText(object) {
  const bytes = Buffer.from(words().buffer, object + 20, field(object, 0) - 1);
  return Buffer.from(bytes).toString("utf8");
}

function main(calls) {
  const constant = (name) => keep(words()[calls[name].value >> 2]);
  calls.lean_initialize();
  calls.lean_init_search_path();
  calls.lean_enable_initializer_execution();
  calls.lean_io_mark_end_initialization();
  calls.lean_init_task_manager_using(1);

  const imported = new Map();
  function importing(header) {
    const known = imported.get(header);
    if (known !== undefined) return known;
    const parsed = calls.l_Lean_Elab_parseImports___boxed(toLean(header), BOX0, BOX0);
    const imports = keep(field(field(parsed, 0), 0));
    const plugins = calls.lean_mk_array(BOX0, BOX0);
    const result = calls.l_Lean_importModules(
      imports, constant("l_Lean_Options_empty"), 0, plugins, 1, 1, PRIVATE_LEVEL, NO_ARTIFACTS);
    const answer = tag(result) === 0 ? { environment: field(result, 0), messages: [] } : {
      environment: 0,
      messages: [{
        severity: "error",
        pos: { line: 1, column: 0 },
        endPos: null,
        data: toText(calls.lean_io_error_to_string(field(result, 0))),
      }],
    };
    imported.set(header, answer);
    return answer;
  }

  const states = []; // of each environment: what it imports, and the text after that
  function run({ cmd, env }) {
    const state = env === undefined ? { header: "", text: "" } : states[env];
    if (state === undefined) return { message: "Unknown environment." };
    let { header, text } = state;
    let body = cmd;
    if (env === undefined) {
      header = /^(?:\s*import\s+\S+[^\S\n]*(?:\n|$))*/.exec(cmd)[0];
      body = cmd.slice(header.length);
    }
    const base = importing(header);
    if (base.environment === 0) return { env: states.push(state) - 1, messages: base.messages };
    const lines = text.split("\n").length - 1;
    const result = calls.l_Lean_Elab_process___boxed(
      toLean(text + body), keep(base.environment), constant("l_Lean_Options_empty"), BOX0, BOX0);
    if (tag(result) !== 0) return { message: "Lean could not run the command" };
    const offset = env === undefined ? header.split("\n").length - 1 : -lines;
    const messages = [];
    let list = calls.l_Lean_MessageLog_toList___boxed(keep(field(field(result, 0), 1)));
    const first = list;
    while (tag(list) === 1) {
      const json = calls.l_Lean_Json_compress(
        calls.l_Lean_Message_toJson___boxed(keep(field(list, 0)), BOX0));
      const told = message(JSON.parse(toText(json)), offset);
      told.data = withoutTheorems(told.data, base.environment, text + body);
      messages.push(told);
      release(json);
      list = field(list, 1);
    }
    release(first);
    release(result);
    states.push({ header, text: `${text}${body}\n` });
    const shown = messages.filter((each) => each.pos.line > 0);
    return shown.length ? { messages: shown, env: states.length - 1 } : { env: states.length - 1 };
  }

  // The library comes without its proofs, so Lean takes each of its theorems for an axiom. They are
  // left out of the answers about axioms; the library's own axioms and what a file declares stay.
  // A private theorem is told without the part of its name that would find it.
  function withoutTheorems(text, environment, file) {
    const report = /^('.*') depends on axioms: \[([^\]]*)\]$/.exec(text);
    if (report === null) return text;
    const mayDeclare = /axiom|constant|opaque|sorry/.test(file);
    const axioms = report[2].split(/,\s*/).filter((name) => {
      if (AXIOMS.has(name)) return true;
      const asked = calls.l_String_toName(toLean(name));
      const module = calls.l_Lean_Environment_getModuleIdxFor_x3f___boxed(keep(environment), asked);
      return tag(module) === 0 && mayDeclare;
    });
    return axioms.length
      ? `${report[1]} depends on axioms: [${axioms.join(",\n ")}]`
      : `${report[1]} does not depend on any axioms`;
  }

  function message({ severity, pos, endPos, data }, offset = 0) {
    const moved = (at) => at && { line: at.line + offset, column: at.column };
    return {
      severity: severity === "information" ? "info" : severity,
      pos: moved(pos),
      endPos: moved(endPos),
      data: data.trim(),
    };
  }

  let input = "";
  const chunk = Buffer.alloc(1 << 16);
  const decoder = new TextDecoder();
  for (;;) {
    const end = input.indexOf("\n\n");
    if (end < 0) {
      const length = fs.readSync(0, chunk);
      if (length === 0) process.exit(0);
      input += decoder.decode(chunk.subarray(0, length), { stream: true });
      continue;
    }
    const command = JSON.parse(input.slice(0, end));
    input = input.slice(end + 2);
    write(1, JSON.stringify(run(command)) + "\n\n");
  }
}
