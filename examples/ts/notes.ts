/**
 * notes.ts MODEL FOLDER QUESTION...: searches a folder of notes by meaning. Each paragraph of the .md and .txt files below the
 * folder gets a row of numbers, kept in SQLite beside the notes (FOLDER/.notes.sqlite); only files that changed are embedded
 * again. Bun has SQLite.
 *
 * The model is one for embeddings, such as bge, gte, nomic-embed or embeddinggemma; others give rows too, with less meaning.
 */
import { Database } from "bun:sqlite";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { type Model, load } from "eliza-inference";

/** The most characters of a paragraph that are embedded. */
const LONGEST = 1000;
/** Paragraphs of a call: short ones share passes. */
const AT_ONCE = 64;

interface Paragraph {
  file: string;
  text: string;
  row: Uint8Array;
}

function open(folder: string, model: string): Database {
  const db = new Database(join(folder, ".notes.sqlite"), { create: true });
  db.run("CREATE TABLE IF NOT EXISTS files (file TEXT PRIMARY KEY, changed REAL NOT NULL)");
  db.run("CREATE TABLE IF NOT EXISTS paragraphs (file TEXT NOT NULL, text TEXT NOT NULL, row BLOB NOT NULL)");
  db.run("CREATE TABLE IF NOT EXISTS model (path TEXT NOT NULL)");
  // Rows of different models cannot be compared.
  if (db.query<{ path: string }, []>("SELECT path FROM model").get()?.path !== model) {
    for (const table of ["files", "paragraphs", "model"]) db.run(`DELETE FROM ${table}`);
    db.run("INSERT INTO model VALUES (?)", [model]);
  }
  return db;
}

/** Brings the database up to the files; returns how many paragraphs were embedded. */
async function index(db: Database, model: Model, folder: string): Promise<number> {
  const names = readdirSync(folder, { recursive: true }).map(String).filter((name) => /\.(md|txt)$/.test(name));
  const known = new Map(db.query<{ file: string; changed: number }, []>("SELECT * FROM files").all().map((row) => [row.file, row.changed]));
  const [forget, forgetFile] = ["DELETE FROM paragraphs WHERE file = ?", "DELETE FROM files WHERE file = ?"];
  for (const file of known.keys()) {
    if (!names.includes(file)) for (const sql of [forget, forgetFile]) db.run(sql, [file]);
  }
  let embedded = 0;
  for (const file of names) {
    const changed = statSync(join(folder, file)).mtimeMs;
    if (known.get(file) === changed) continue;
    const paragraphs = readFileSync(join(folder, file), "utf8").split(/\n\s*\n/).map((text) => text.trim()).filter(Boolean);
    db.run(forget, [file]);
    for (let at = 0; at < paragraphs.length; at += AT_ONCE) {
      const texts = paragraphs.slice(at, at + AT_ONCE).map((text) => text.slice(0, LONGEST));
      const rows = await model.embed(texts);
      const insert = db.prepare("INSERT INTO paragraphs VALUES (?, ?, ?)");
      db.transaction(() => rows.forEach((row, i) => insert.run(file, texts[i]!, new Uint8Array(row.slice().buffer))))();
      embedded += rows.length;
    }
    db.run("INSERT OR REPLACE INTO files VALUES (?, ?)", [file, changed]);
  }
  return embedded;
}

/** The paragraphs nearest to the question; rows have length 1, so the product is the cosine of their angle. */
async function search(db: Database, model: Model, question: string, most: number) {
  const [wanted] = await model.embed([question]);
  const scored = db.query<Paragraph, []>("SELECT * FROM paragraphs").all().map(({ file, text, row }) => {
    const numbers = new Float32Array(row.slice().buffer);
    return { file, text, score: numbers.reduce((sum, x, i) => sum + x * wanted![i]!, 0) };
  });
  return scored.sort((a, b) => b.score - a.score).slice(0, most);
}

const [path, folder, ...words] = process.argv.slice(2);
if (path === undefined || folder === undefined || words.length === 0) {
  console.error("usage: notes.ts MODEL FOLDER QUESTION...");
  process.exit(2);
}
const model = await load(path);
const db = open(folder, path);
console.error(`${await index(db, model, folder)} paragraphs embedded`);
for (const { file, text, score } of await search(db, model, words.join(" "), 3)) {
  console.log(`${score.toFixed(3)}  ${file}: ${text.replace(/\s+/g, " ").slice(0, 100)}`);
}
db.close();
model.close();
