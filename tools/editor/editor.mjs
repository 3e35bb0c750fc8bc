// The editor of live cells: CodeMirror 6 with Python. build.mjs makes book/_static/live/editor.js of it.
// Code is coloured with the classes of Pygments, so that the book's own style sheet serves, in both themes.
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin, keymap, drawSelection } from "@codemirror/view";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { pythonLanguage } from "@codemirror/lang-python";
import { tagHighlighter, tags as t } from "@lezer/highlight";

const pygments = tagHighlighter([
  { tag: t.definitionKeyword, class: "k" }, { tag: t.controlKeyword, class: "k" }, { tag: t.keyword, class: "k" },
  { tag: t.operatorKeyword, class: "ow" }, { tag: t.moduleKeyword, class: "kn" },
  { tag: [t.bool, t.null], class: "kc" }, { tag: [t.integer, t.float, t.number], class: "mi" },
  { tag: [t.string, t.special(t.string)], class: "s2" }, { tag: t.escape, class: "se" },
  { tag: t.comment, class: "c1" }, { tag: t.self, class: "bp" },
  { tag: [t.function(t.definition(t.variableName)), t.function(t.variableName)], class: "nf" },
  { tag: t.definition(t.className), class: "nc" }, { tag: t.meta, class: "nd" },
  { tag: [t.operator, t.arithmeticOperator, t.compareOperator], class: "o" }, { tag: t.punctuation, class: "p" },
]);

// The line at which an error was raised: coloured until the text changes.
const blame = StateEffect.define();
const blamed = StateField.define({
  create: () => Decoration.none,
  update: (old, change) => {
    const effect = change.effects.find((e) => e.is(blame));
    if (!effect) return change.docChanged ? Decoration.none : old;
    const { doc } = change.state, line = effect.value;
    return line >= 1 && line <= doc.lines
      ? Decoration.set(Decoration.line({ class: "ln-live-blamed" }).range(doc.line(line).from)) : Decoration.none;
  },
  provide: (field) => EditorView.decorations.from(field),
});

// A line that is too long goes on a little further in than it began, as listings do (ln.css). Six pixels are CodeMirror's own.
const hang = (view) => Decoration.set(view.visibleRanges.flatMap(({ from, to }) => {
  const found = [], { doc } = view.state;
  for (let at = from; at <= to;) {
    const line = doc.lineAt(at), by = Math.min(16, line.text.search(/\S|$/)) + 2;
    found.push(Decoration.line({ attributes: { style: `text-indent: -${by}ch; padding-left: calc(${by}ch + 6px)` } }).range(line.from));
    at = line.to + 1;
  }
  return found;
}), true);
const hanging = ViewPlugin.define((view) => ({
  lines: hang(view),
  update(change) { if (change.docChanged || change.viewportChanged) this.lines = hang(change.view); },
}), { decorations: (plugin) => plugin.lines });

/** An editor in ``parent``: ``change(text)`` hears every change, ``run()`` Shift-, Ctrl- or Cmd-Enter. */
export function open(parent, text, { label, description, run, change }) {
  const go = () => (run(), true);
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        history(), drawSelection(), indentOnInput(), bracketMatching(), indentUnit.of("    "), blamed,
        pythonLanguage, syntaxHighlighting(pygments),
        EditorState.tabSize.of(4), EditorView.lineWrapping, hanging,  // on a phone nothing scrolls sideways
        EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": description }),
        // Tab leaves the editor, as it leaves every other field: nobody is caught in it. Ctrl-] indents.
        keymap.of([{ key: "Shift-Enter", run: go }, { key: "Mod-Enter", run: go }, { key: "Ctrl-Enter", run: go },
                   ...historyKeymap, ...defaultKeymap]),
        EditorView.updateListener.of((update) => update.docChanged && change(update.state.doc.toString())),
      ],
    }),
  });
  return {
    // As one change, which Ctrl-Z takes back.
    set: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    focus: () => view.focus(),
    blame: (line) => view.dispatch({ effects: blame.of(line) }),
  };
}
