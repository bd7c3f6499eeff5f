// Sends dead letters again, from whichever page shows them.
import { sendJson } from "./api";
import { confirmation } from "./confirm.svelte";
import { attempt } from "./run_actions";

/** Ask, then send a letter again; tell whether it was sent. */
export async function requeueLetter(sequence: number, who: string): Promise<boolean> {
  const answer = await confirmation.ask({
    title: `Send letter ${sequence} again?`,
    text: "It goes to its own subject; what was done already is not done twice.",
    action: "Send again",
    command: `noetl dlq requeue ${sequence}`,
  });
  if (answer === null) return false;
  return attempt("The letter is sent again", () =>
    sendJson("POST", `/api/dead-letters/${sequence}/requeue`, { who }),
  );
}
