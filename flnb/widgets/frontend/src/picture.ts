/** A part of the page as one picture: canvases, texts and filled boxes where they are, without the controls. */

const CONTROLS = "input, select, textarea, [role=radiogroup], [role=group], .fl-export, .fl-iconbutton, .fl-tip, .fl-hidden, .fl-search, :not(th) > button";

interface Box { left: number; top: number; right: number; bottom: number }

const within = (one: Box, other: Box): Box => ({
  left: Math.max(one.left, other.left), top: Math.max(one.top, other.top), right: Math.min(one.right, other.right), bottom: Math.min(one.bottom, other.bottom),
});
const empty = ({ left, top, right, bottom }: Box): boolean => right <= left || bottom <= top;

/** Draw an element as it is on the page now; null where nothing of it is in sight. */
export function picture(element: HTMLElement): HTMLCanvasElement | null {
  const around = element.getBoundingClientRect();
  const scale = Math.max(1, ...[...element.querySelectorAll("canvas")].map((canvas) => canvas.width / (canvas.getBoundingClientRect().width || Infinity)));
  const made = document.createElement("canvas");
  [made.width, made.height] = [Math.round(around.width * scale), Math.round(around.height * scale)];
  const pen = made.getContext("2d");
  if (!pen || !made.width || !made.height) return null;
  pen.scale(scale, scale);
  pen.translate(-around.left, -around.top);
  pen.fillStyle = getComputedStyle(element.closest(".fl-root") ?? element).backgroundColor;
  pen.fillRect(around.left, around.top, around.width, around.height);
  draw(pen, element, around);
  return made;
}

/** Draw an element and what is in it, as far as it lies in `sight`. */
function draw(pen: CanvasRenderingContext2D, element: Element, sight: Box): void {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || element.matches(CONTROLS)) return;
  const box = element.getBoundingClientRect();
  const seen = within(box, sight);
  const clips = style.overflowX !== "visible" || style.overflowY !== "visible";
  if (clips && empty(seen)) return;
  pen.save();
  if (clips) {
    pen.beginPath();
    pen.rect(seen.left, seen.top, seen.right - seen.left, seen.bottom - seen.top);
    pen.clip();
  }
  pen.globalAlpha *= Number(style.opacity);
  if (!empty(seen) && !/^(transparent|rgba\(.*, 0\))$/.test(style.backgroundColor)) {
    pen.fillStyle = style.backgroundColor;
    pen.fillRect(box.left, box.top, box.width, box.height);
  }
  if (element instanceof HTMLCanvasElement) {
    if (element.width && element.height && !empty(seen)) pen.drawImage(element, box.left, box.top, box.width, box.height);
  } else {
    for (const child of element.childNodes) {
      if (child instanceof Element) draw(pen, child, clips ? seen : sight);
      else if (child instanceof Text) write(pen, child, style, clips ? seen : sight);
    }
  }
  pen.restore();
}

/** Draw a text, which may have several lines, in its parent's font. */
function write(pen: CanvasRenderingContext2D, text: Text, style: CSSStyleDeclaration, sight: Box): void {
  if (!text.data.trim()) return;
  pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  pen.fillStyle = style.color;
  pen.textBaseline = "middle";
  const range = document.createRange();
  for (const { line, box } of lines(text, range)) if (!empty(within(box, sight))) pen.fillText(line, box.left, (box.top + box.bottom) / 2);
}

/** The lines of a text with their places. */
function lines(text: Text, range: Range): { line: string; box: DOMRect }[] {
  range.selectNodeContents(text);
  const boxes = [...range.getClientRects()];
  if (boxes.length === 1) return [{ line: text.data.trim().replace(/\s+/g, " "), box: boxes[0]! }];
  const found = new Map<number, { line: string; box: DOMRect }>();
  for (let at = 0; at < text.data.length; at++) { // a wrapped text: each letter says on which line it stands
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const box = range.getBoundingClientRect();
    const known = found.get(Math.round(box.top));
    if (known) known.line += text.data[at]!;
    else if (box.width) found.set(Math.round(box.top), { line: text.data[at]!, box });
  }
  return [...found.values()];
}
