// Records where texts stand on canvases: in `texts` of each canvas, in CSS pixels, as far as clips leave them; until the canvas is cleared, or something is drawn over them.
{
    const pen = CanvasRenderingContext2D.prototype;
    const own = Object.fromEntries(["fillText", "clearRect", "fillRect", "rect", "beginPath", "clip", "save", "restore"].map(name => [name, pen[name]]));
    const everything = {left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity};
    const meet = (one, other) => ({
        left: Math.max(one.left, other.left), top: Math.max(one.top, other.top), right: Math.min(one.right, other.right), bottom: Math.min(one.bottom, other.bottom),
    });
    const state = context => context.inked ??= {clip: everything, saved: [], path: null};
    // A rectangle of the context's units in pixels of the canvas element.
    const placed = (context, x, y, wide, high) => {
        const {a, d, e, f} = context.getTransform();
        const scale = context.canvas.width / (context.canvas.clientWidth || context.canvas.width);
        const [x0, x1, y0, y1] = [x * a + e, (x + wide) * a + e, y * d + f, (y + high) * d + f].map(value => value / scale);
        return {left: Math.min(x0, x1), top: Math.min(y0, y1), right: Math.max(x0, x1), bottom: Math.max(y0, y1)};
    };
    const hides = (over, {left, top, right, bottom}) => {
        const [x, y] = [(left + right) / 2, (top + bottom) / 2];
        return over.left <= x && over.right >= x && over.top <= y && over.bottom >= y;
    };
    Object.assign(pen, {
        fillText(text, x, y, ...rest) {
            own.fillText.call(this, text, x, y, ...rest);
            const {width, actualBoundingBoxAscent: above, actualBoundingBoxDescent: below} = this.measureText(text);
            const from = this.textAlign === "right" ? x - width : this.textAlign === "center" ? x - width / 2 : x;
            const whole = placed(this, from, y - above, width, above + below);
            const part = meet(whole, state(this).clip);
            if (this.globalAlpha > 0.3 && part.right > part.left && part.bottom > part.top) (this.canvas.texts ??= []).push({words: text, whole, ...part});
        },
        clearRect(...box) {
            own.clearRect.apply(this, box);
            this.canvas.texts = [];
            this.inked = null; // what was saved is restored by its owner
        },
        fillRect(...box) {
            own.fillRect.apply(this, box);
            if (this.globalAlpha < 1 || typeof this.fillStyle !== "string" || this.fillStyle.startsWith("rgba")) return;
            const over = meet(placed(this, ...box), state(this).clip);
            if (this.canvas.texts) this.canvas.texts = this.canvas.texts.filter(text => !hides(over, text));
        },
        beginPath() {
            own.beginPath.call(this);
            state(this).path = null;
        },
        rect(...box) {
            own.rect.apply(this, box);
            state(this).path = placed(this, ...box);
        },
        clip(...rest) {
            own.clip.apply(this, rest);
            const now = state(this);
            if (now.path) now.clip = meet(now.clip, now.path);
        },
        save() {
            own.save.call(this);
            state(this).saved.push(state(this).clip);
        },
        restore() {
            own.restore.call(this);
            state(this).clip = state(this).saved.pop() ?? everything;
        },
    });
}
