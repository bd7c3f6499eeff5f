// One question at a time before what changes something: the page asks, a dialog answers.

export interface Question {
  title: string;
  text: string;
  action: string;
  isDangerous?: boolean;
  command?: string;
  /** A text that is asked for, by its label. */
  label?: string;
  value?: string;
  choices?: string[];
}

class Confirmation {
  question = $state.raw<Question | null>(null);
  private answer: ((value: string | null) => void) | null = null;

  /** Return the text that was given, empty where none was asked for; null: not confirmed. */
  ask(question: Question): Promise<string | null> {
    this.answer?.(null);
    this.question = question;
    return new Promise((resolve) => (this.answer = resolve));
  }

  settle(value: string | null): void {
    this.question = null;
    this.answer?.(value);
    this.answer = null;
  }
}

export const confirmation = new Confirmation();

class Notices {
  text = $state("");
  isProblem = $state(false);
  private timer = 0;

  show(text: string, isProblem = false): void {
    this.text = text;
    this.isProblem = isProblem;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => (this.text = ""), isProblem ? 12_000 : 5_000);
  }
}

export const notices = new Notices();
