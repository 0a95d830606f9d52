export const OWN: string[];
export function marked(source: string): string;
