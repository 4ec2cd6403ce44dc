// Builds overlays of contrib/kubernetes as `kubectl kustomize` does, as far as our files go: a key that this does not know is an
// error. Each object is then checked against the schema of its kind, and unknown keys are errors, too. Prints the objects of each.
//   scripts/node --file tests/kubernetes/build.mjs FOLDER...
import { createHash } from "node:crypto";
import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import ts from "typescript";
import { parseAllDocuments } from "yaml";

const KEYS = ["apiVersion", "kind", "namespace", "resources", "components", "patches", "configMapGenerator"];
const WITHOUT_NAMESPACE = ["Namespace"];
const GROUPS = {
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "keda.sh": "@kubernetes-models/keda",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
};

function read(path) {
  const documents = parseAllDocuments(readFileSync(path, "utf8"));
  for (const document of documents) {
    const [problem] = [...document.errors, ...document.warnings];
    if (problem) throw new Error(`${path}: ${problem.message}`);
  }
  return documents.map((document) => document.toJS()).filter((found) => found !== null);
}

function isSame(one, other) {
  return one.kind === other.kind && one.apiVersion === other.apiVersion && one.metadata.name === other.metadata.name;
}

function merge(target, patch, place) {
  for (const [key, value] of Object.entries(patch)) {
    if (Array.isArray(value)) throw new Error(`${place}.${key}: a patch with a list is not understood here`);
    if (value === null) delete target[key];
    else if (typeof value === "object") merge((target[key] ??= {}), value, `${place}.${key}`);
    else target[key] = value;
  }
}

function generated(folder, { name, files, ...others }) {
  if (Object.keys(others).length) throw new Error(`${folder}: configMapGenerator has ${Object.keys(others)}`);
  const data = {};
  for (const file of files) {
    const [key, path] = file.includes("=") ? file.split("=") : [basename(file), file];
    data[key] = readFileSync(join(folder, path), "utf8");
  }
  // Other content has another name, so pods are replaced. The digest is ours and not Kustomize's.
  const digest = createHash("sha256").update(JSON.stringify(data)).digest("hex").slice(0, 10);
  return { apiVersion: "v1", kind: "ConfigMap", metadata: { name }, data, digest };
}

function build(folder, objects = []) {
  const file = join(folder, "kustomization.yaml");
  const [own] = read(file);
  const unknown = Object.keys(own).filter((key) => !KEYS.includes(key));
  if (unknown.length) throw new Error(`${file}: ${unknown} is not understood here`);
  for (const resource of own.resources ?? []) {
    const path = join(folder, resource);
    if (!existsSync(path)) throw new Error(`${file}: there is no ${resource}`);
    if (statSync(path).isDirectory()) build(path, objects);
    else objects.push(...read(path));
  }
  for (const component of own.components ?? []) build(join(folder, component), objects);
  for (const map of own.configMapGenerator ?? []) objects.push(generated(folder, map));
  for (const { patch, ...others } of own.patches ?? []) {
    if (Object.keys(others).length) throw new Error(`${file}: a patch has ${Object.keys(others)}`);
    const [text] = parseAllDocuments(patch).map((document) => document.toJS());
    const found = objects.filter((object) => isSame(object, text));
    if (found.length !== 1) throw new Error(`${file}: ${found.length} objects are patched by ${patch}`);
    merge(found[0], text, file);
  }
  if (own.namespace) {
    for (const object of objects) {
      if (!WITHOUT_NAMESPACE.includes(object.kind)) object.metadata.namespace = own.namespace;
    }
  }
  return objects;
}

// Gives each generated map its name with the digest, and the volumes that refer to it.
function named(objects) {
  const names = new Map();
  for (const object of objects) {
    if (!object.digest) continue;
    names.set(object.metadata.name, `${object.metadata.name}-${object.digest}`);
    object.metadata.name = names.get(object.metadata.name);
    delete object.digest;
  }
  for (const object of objects) {
    for (const volume of object.spec?.template?.spec?.volumes ?? []) {
      if (volume.configMap) volume.configMap.name = names.get(volume.configMap.name) ?? volume.configMap.name;
    }
  }
  return objects;
}

// The module with the type of an object.
function moduleOf(object) {
  const [group, version] = object.apiVersion.includes("/") ? object.apiVersion.split("/") : ["", object.apiVersion];
  return [GROUPS[group] ?? "kubernetes-models", group, version].filter((part) => part !== "").join("/");
}

// The values of an object.
async function checkValues(object) {
  const kind = (await import(moduleOf(object)))[object.kind];
  if (!kind) throw new Error(`${moduleOf(object)} has no ${object.kind}`);
  new kind(object).validate();
}

// The keys of all objects. The schemas don't name unknown ones, but the compiler of their types does.
function checkKeys(objects) {
  const name = join(import.meta.dirname, "objects.mts");
  const lines = objects.map((object, number) => {
    const kind = `import("${moduleOf(object)}").I${object.kind}`;
    return `export const object${number}: ${kind} = ${JSON.stringify(object, null, 1)};`;
  });
  const options = {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    target: ts.ScriptTarget.ES2022,
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists } = host;
  const source = ts.createSourceFile(name, lines.join("\n"), ts.ScriptTarget.ES2022);
  host.getSourceFile = (file, ...others) => (file === name ? source : getSourceFile(file, ...others));
  host.fileExists = (file) => file === name || fileExists(file);
  const program = ts.createProgram([name], options, host);
  const [problem] = program.getSemanticDiagnostics(source);
  if (!problem) return;
  const line = source.getLineAndCharacterOfPosition(problem.start).line;
  const lineText = source.text.split("\n")[line].trim();
  throw new Error(`${ts.flattenDiagnosticMessageText(problem.messageText, " ")}: ${lineText}`);
}

const folders = Object.fromEntries(process.argv.slice(2).map((folder) => [folder, named(build(folder))]));
const objects = Object.values(folders).flat();
for (const object of objects) {
  try {
    await checkValues(object);
  } catch (error) {
    throw new Error(`${object.kind} ${object.metadata.name}: ${error.message}`, { cause: error });
  }
}
checkKeys(objects);
for (const found of Object.values(folders)) {
  const all = found.map((object) => `${object.kind} ${object.metadata.name}`);
  if (new Set(all).size !== all.length) throw new Error(`two objects have one name: ${all}`);
}
console.log(JSON.stringify(folders));
