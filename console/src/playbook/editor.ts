// The editor of playbooks: YAML, problems at their lines, completion of the language's words.
import { autocompletion, closeBrackets, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Problem } from "../lib/types";
import { completeWords } from "./words";

export interface YamlEditorView {
  setText(text: string): void;
  showProblems(problems: Problem[]): void;
  showLine(line: number): void;
  destroy(): void;
}

interface Options {
  text: string;
  isReadOnly: boolean;
  onChange: (text: string) => void;
}

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.definition(tags.propertyName), color: "var(--accent)" },
  { tag: tags.string, color: "var(--done)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--waiting)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
  { tag: [tags.keyword, tags.meta], color: "var(--running)" },
]);

const LOOK = EditorView.theme({
  "&": { height: "100%", color: "var(--text)", backgroundColor: "transparent", fontSize: "13px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": {
    backgroundColor: "transparent",
    color: "var(--muted)",
    border: "none",
    paddingLeft: "8px",
  },
  ".cm-activeLine, .cm-activeLineGutter": {
    backgroundColor: "color-mix(in srgb, var(--raised) 55%, transparent)",
  },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--accent-ground) !important",
  },
  ".cm-tooltip": {
    border: "1px solid var(--line)",
    borderRadius: "6px",
    backgroundColor: "var(--panel)",
    color: "var(--text)",
  },
  ".cm-tooltip-autocomplete ul li[aria-selected]": {
    backgroundColor: "var(--accent-ground)",
    color: "var(--text)",
  },
  // Underlines of our own: those of the editor are images, which the page's policy refuses.
  ".cm-lintRange": { backgroundImage: "none", textDecoration: "underline wavy" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecorationColor: "var(--failed)" },
  ".cm-lintRange-warning": { backgroundImage: "none", textDecorationColor: "var(--waiting)" },
  ".cm-lintRange-active": { backgroundColor: "var(--waiting-ground)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
});

export function createEditor(root: ShadowRoot, options: Options): YamlEditorView {
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: options.text,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        closeBrackets(),
        autocompletion({ override: [completeWords] }),
        yaml(),
        indentUnit.of("  "),
        syntaxHighlighting(COLOURS),
        LOOK,
        EditorView.lineWrapping,
        // A text that is longer than its frame is scrolled by keyboard, which starts in the text.
        EditorView.contentAttributes.of({ "aria-label": "Text of the playbook", tabindex: "0" }),
        EditorState.readOnly.of(options.isReadOnly),
        // Escape and then Tab leaves the editor by the keyboard.
        keymap.of([
          ...completionKeymap,
          ...lintKeymap,
          ...historyKeymap,
          ...defaultKeymap,
          indentWithTab,
        ]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) options.onChange(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    setText: (text) => replaceText(view, text),
    showProblems: (problems) =>
      view.dispatch(setDiagnostics(view.state, buildMarks(view, problems))),
    showLine: (line) => {
      const at = view.state.doc.line(Math.max(1, Math.min(line, view.state.doc.lines)));
      view.dispatch({
        selection: { anchor: at.from },
        effects: EditorView.scrollIntoView(at.from, { y: "center" }),
      });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}

function replaceText(view: EditorView, text: string): void {
  const present = view.state.doc.toString();
  if (present !== text) view.dispatch({ changes: { from: 0, to: present.length, insert: text } });
}

function buildMarks(view: EditorView, problems: Problem[]): Diagnostic[] {
  const { doc } = view.state;
  return problems.map((problem) => {
    const line = doc.line(Math.max(1, Math.min(problem.line, doc.lines)));
    const from = Math.min(line.to, line.from + Math.max(0, problem.column - 1));
    return {
      from,
      to: Math.max(from, line.to),
      severity: problem.severity === "error" ? "error" : "warning",
      source: problem.code,
      message: [problem.message, problem.hint].filter(Boolean).join(" "),
    };
  });
}
