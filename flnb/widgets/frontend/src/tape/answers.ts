/** What was asked of a tape, put to what is known of it. */

import type { Tape, TapeAnswer } from "../protocol.ts";

/** The tape with more of its levels; null where the answer is about another: while paused the kernel may have gone on. */
export function withAnswer(tape: Tape, answer: TapeAnswer): Tape | null {
  if (tape.structure !== answer.structure || tape.step !== answer.step) return null;
  const merged = <T>(old: T[], added: T[], id: (item: T) => number | string): T[] => [...new Map([...old, ...added].map((item) => [id(item), item])).values()];
  return {
    ...tape, levels: merged(tape.levels, answer.levels, (level) => level.key), nodes: merged(tape.nodes, answer.nodes, (node) => node.id),
    leaves: merged(tape.leaves, answer.leaves, (leaf) => leaf.id),
  };
}
