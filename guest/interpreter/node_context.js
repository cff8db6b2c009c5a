// A context for JavaScript and TypeScript: one Node process.
//
// Started by the server as `node node_context.js LANGUAGE REQUESTS EVENTS`, two descriptors. Code is
// evaluated by V8's own debugger interface in the mode that consoles use: const, let and class stay and
// may be declared again, `await` works everywhere. TypeScript is stripped of its types first, by Node
// itself or by a `typescript` package.
//
// A worker reads the requests, because only another thread can stop code that never returns. What
// console and process.stdout write becomes events in order; children's output is read by the server.
'use strict';

const fs = require('node:fs');
const inspector = require('node:inspector');
const module_ = require('node:module');
const path = require('node:path');
const util = require('node:util');
const worker = require('node:worker_threads');
const { pathToFileURL } = require('node:url');

// The clock that counts nanoseconds, and what it showed when.
const START = process.hrtime.bigint();
const EPOCH = BigInt(Date.now()) * 1000000n;

const STOP_AFTER_MS = 200;
const PIECE_CHARS_MAX = 32 * 1024;
const RESULT_CHARS_MAX = 8 * 1024 * 1024;

/** The thread that reads requests. */
function readRequests({ requests, busy }) {
  const { Socket } = require('node:net');
  const session = new inspector.Session();
  session.connectToMainThread();
  const flag = new Int32Array(busy);
  let rest = '';
  const stop = () => {
    const round = Atomics.load(flag, 1);
    setTimeout(() => {
      // Still the same code, which has not even let the main thread look at its messages.
      if (Atomics.load(flag, 0) === 1 && Atomics.load(flag, 1) === round) {
        session.post('Runtime.terminateExecution');
      }
    }, STOP_AFTER_MS);
  };
  const socket = new Socket({ fd: requests, readable: true, writable: false });
  socket.setEncoding('utf8');
  socket.on('data', (text) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      const message = JSON.parse(line);
      worker.parentPort.postMessage(message);
      if (message.op === 'interrupt') stop();
    }
  });
  socket.on('close', () => process.exit(0));
}

/** Serve until the server is gone. */
function main(language, requests, events) {
  const say = (event) => writeAll(events, JSON.stringify(event) + '\n');
  const strip = language === 'typescript' ? findStripper() : (code) => code;
  if (strip === null) {
    say({
      type: 'failed',
      reason:
        `typescript needs a newer Node than ${process.version}, or a typescript package, ` +
        'and this image has neither',
    });
    process.exit(1);
  }
  prepareGlobals();
  captureOutput(say);
  const context = new Context(say, strip);
  new worker.Worker(__filename, {
    workerData: { requests, busy: context.busy },
    stdout: true,
  }).on('message', (message) => context.receive(message));
  process.on('SIGINT', () => {}); // The worker is told in words.
  process.on('uncaughtException', (error) => context.fail(error));
  process.on('unhandledRejection', (error) => context.fail(error));
  say({ type: 'ready' });
}

function writeAll(fd, text) {
  let bytes = Buffer.from(text);
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(fs.writeSync(fd, bytes));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

/** What user code finds without asking: the modules of its directory, as in a script there. */
function prepareGlobals() {
  const here = path.join(process.cwd(), 'context.js');
  const require_ = module_.createRequire(here);
  // `import` looks in the user's directory, not in this file's.
  const load = (name) => {
    const isPath = /^\.{0,2}\//.test(name);
    if (isPath) return import(pathToFileURL(path.resolve(name)).href);
    if (module_.isBuiltin(name) || /^[a-z]+:/.test(name)) return import(name);
    return import(pathToFileURL(require_.resolve(name)).href);
  };
  Object.assign(globalThis, { require: require_, module: { exports: {} }, exports: {} });
  Object.defineProperty(globalThis, '__ramet_import', { value: async (name) => load(String(name)) });
}

function captureOutput(say) {
  for (const name of ['stdout', 'stderr']) {
    process[name].write = (data, encoding, done) => {
      const text = typeof data === 'string' ? data : Buffer.from(data).toString('utf8');
      for (let at = 0; at < text.length; at += PIECE_CHARS_MAX) {
        // As a number it would lose its last digits, which nobody misses in microseconds.
        const timestamp = Number(process.hrtime.bigint() - START + EPOCH);
        say({ type: name, text: text.slice(at, at + PIECE_CHARS_MAX), timestamp });
      }
      const callback = typeof encoding === 'function' ? encoding : done;
      if (callback) process.nextTick(callback);
      return true;
    };
  }
}

/** A function that takes the types out of TypeScript; null if there is none in this image. */
function findStripper() {
  if (typeof module_.stripTypeScriptTypes === 'function') {
    return (code) => module_.stripTypeScriptTypes(code, { mode: 'transform' });
  }
  const places = [process.cwd(), '/usr/lib/node_modules', '/usr/local/lib/node_modules', '/usr/share/nodejs'];
  for (const place of places) {
    try {
      const typescript = require(require.resolve('typescript', { paths: [place, path.dirname(place)] }));
      const compilerOptions = { target: 'ESNext', module: 'ESNext', verbatimModuleSyntax: false };
      return (code) => {
        const done = typescript.transpileModule(code, { compilerOptions, reportDiagnostics: true });
        const wrong = (done.diagnostics || [])[0];
        if (wrong) throw new SyntaxError(typescript.flattenDiagnosticMessageText(wrong.messageText, '\n'));
        return done.outputText.replace(/^export \{\};?\s*$/m, '');
      };
    } catch {
      continue;
    }
  }
  return null;
}

/** Runs code, one piece at a time. */
class Context {
  constructor(say, strip) {
    this.say = say;
    this.strip = strip;
    this.count = 0;
    this.queue = [];
    this.running = null; // Called with an error to give up what runs.
    this.busy = new SharedArrayBuffer(8); // Whether code runs, and the how manieth.
    this.flag = new Int32Array(this.busy);
    this.session = new inspector.Session();
    this.session.connect();
  }

  receive(message) {
    if (message.op === 'interrupt') {
      if (this.running) this.running(interrupted());
    } else if (message.op === 'execute') {
      this.queue.push(message);
      if (this.queue.length === 1) this.work();
    }
  }

  /** An error that nobody caught: the running code's, if there is one. */
  fail(error) {
    if (this.running) this.running(error);
    else process.stderr.write(describe(error).traceback + '\n');
  }

  async work() {
    while (this.queue.length > 0) {
      const { code, env } = this.queue[0];
      const before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
      Object.assign(process.env, env);
      this.count += 1;
      this.say({ type: 'number_of_executions', execution_count: this.count });
      Atomics.store(this.flag, 1, this.count);
      Atomics.store(this.flag, 0, 1);
      try {
        const value = await this.evaluate(code);
        if (value !== undefined) this.showResult(value);
      } catch (error) {
        this.say({ type: 'error', ...describe(error) });
      }
      Atomics.store(this.flag, 0, 0);
      for (const [name, value] of Object.entries(before)) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
      this.queue.shift();
      this.say({ type: 'done' });
    }
  }

  showResult(value) {
    const text = typeof value === 'string' ? value : util.inspect(value);
    this.say({ type: 'result', is_main_result: true, text: text.slice(0, RESULT_CHARS_MAX) });
  }

  evaluate(code) {
    return new Promise((resolve, reject) => {
      this.running = reject;
      const expression = linkImports(this.strip(code));
      const options = { replMode: true, awaitPromise: true, objectGroup: 'ramet', userGesture: false };
      this.session.post('Runtime.evaluate', { expression, ...options }, (error, answer) => {
        if (error) reject(interrupted());
        else if (answer.exceptionDetails) reject(this.take(answer.exceptionDetails.exception || answer.result));
        else resolve(this.take(answer.result));
      });
    })
      .then((value) => ({ value: value && value.held ? value.held[0] : value }))
      .then(({ value }) => (util.types.isPromise(value) ? this.awaited(value) : value))
      .finally(() => {
        this.running = null;
        this.session.post('Runtime.releaseObjectGroup', { objectGroup: 'ramet' });
      });
  }

  /** A promise as the last value is waited for, as long as nobody interrupts. */
  awaited(promise) {
    return new Promise((resolve, reject) => {
      this.running = reject;
      promise.then(resolve, reject);
    });
  }

  /** The value that the debugger's description of it means, in a box so that promises stay promises. */
  take(remote) {
    let held;
    globalThis.__ramet_take = (value) => { held = [value]; };
    const argument = remote.objectId ? { objectId: remote.objectId }
      : remote.unserializableValue ? { unserializableValue: remote.unserializableValue }
      : { value: remote.value };
    this.session.post('Runtime.evaluate', { expression: 'globalThis', objectGroup: 'ramet' }, (_, answer) => {
      this.session.post('Runtime.callFunctionOn', {
        objectId: answer.result.objectId,
        functionDeclaration: 'function (value) { globalThis.__ramet_take(value); }',
        arguments: remote.type === 'undefined' ? [] : [argument],
      });
    });
    delete globalThis.__ramet_take;
    return { held: held || [undefined] };
  }
}

function interrupted() {
  const error = new Error('the execution was interrupted');
  error.name = 'KeyboardInterrupt';
  error.stack = 'KeyboardInterrupt: the execution was interrupted';
  return error;
}

/** An error as an event, without the frames of this file. */
function describe(thrown) {
  const error = thrown && thrown.held ? thrown.held[0] : thrown;
  if (!util.types.isNativeError(error)) {
    const text = typeof error === 'string' ? error : util.inspect(error);
    return { name: 'Error', value: text, traceback: `Uncaught ${text}` };
  }
  const lines = String(error.stack || error).split('\n');
  const end = lines.findIndex((line) => line.includes('node:inspector') || line.includes(__filename));
  const stack = (end < 0 ? lines : lines.slice(0, end)).join('\n');
  return { name: String(error.name), value: String(error.message), traceback: stack };
}

/** Code in which imports go through `__ramet_import`: consoles have no `import` of their own. */
function linkImports(code) {
  let out = '';
  let at = 0;
  for (const [start, end] of plainParts(code)) {
    out += code.slice(at, start) + linkPlain(code.slice(start, end));
    at = end;
  }
  return linkStatements(out + code.slice(at));
}

function linkPlain(code) {
  return code.replace(/(^|[^.\w$])import\s*\(/g, '$1__ramet_import(');
}

/** `import … from '…'` at the beginning of a line as a declaration. */
function linkStatements(code) {
  const statement = /^[ \t]*import\s+(?:([\w$*\s{},]+?)\s+from\s+)?(["'])([^"'\n]+)\2[ \t]*;?/gm;
  return code.replace(statement, (_, names, quote, name) => {
    const loaded = `await __ramet_import(${JSON.stringify(name)})`;
    if (!names) return `${loaded};`;
    const parts = [];
    const braces = names.match(/\{([\s\S]*)\}/);
    const rest = names.replace(/\{[\s\S]*\}/, '');
    const whole = rest.match(/\*\s+as\s+([\w$]+)/);
    const first = rest.replace(/\*\s+as\s+[\w$]+/, '').match(/[\w$]+/);
    if (whole) parts.push(`const ${whole[1]} = ${loaded};`);
    if (first) parts.push(`const ${first[0]} = (${loaded}).default;`);
    if (braces) parts.push(`const {${braces[1].replace(/\s+as\s+/g, ': ')}} = ${loaded};`);
    return parts.join(' ');
  });
}

/** The parts of code that are no text, comment or template, as far as that shows without parsing. */
function* plainParts(code) {
  const other = /\/\/[^\n]*|\/\*[\s\S]*?\*\/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\[\s\S]|[^`\\])*`/g;
  let at = 0;
  for (const found of code.matchAll(other)) {
    yield [at, found.index];
    at = found.index + found[0].length;
  }
  yield [at, code.length];
}

if (!worker.isMainThread) {
  readRequests(worker.workerData);
} else {
  main(process.argv[2], Number(process.argv[3]), Number(process.argv[4]));
}
