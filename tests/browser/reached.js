// Records which elements act on the mouse, and which the keyboard reaches: `unreached()` lists what only a mouse can use.
{
    const mouse = new Set(["click", "dblclick", "pointerdown", "pointerup", "mousedown", "mouseup"]);
    const acting = new Set();
    const listen = EventTarget.prototype.addEventListener;
    EventTarget.prototype.addEventListener = function (kind, ...rest) {
        if (mouse.has(kind) && this instanceof Element) acting.add(this);
        return listen.call(this, kind, ...rest);
    };
    const {set, get} = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "onclick");
    Object.defineProperty(HTMLElement.prototype, "onclick", {get, set(value) {
        if (value) acting.add(this);
        set.call(this, value);
    }});
    let reached = new Set();
    let circles = [];
    let canvases = [];
    const at = () => document.querySelector(".fl-root");
    const shown = element => element.isConnected && element.checkVisibility({visibilityProperty: true}) && !element.disabled;
    // An element that was drawn anew is the one that was reached.
    const nameOf = element => `${element.tagName.toLowerCase()}.${element.className} ${element.ariaLabel ?? element.textContent.trim().slice(0, 40)}`;
    listen.call(document, "focusin", ({target}) => reached.add(target), true);
    window.forgetReached = () => { reached = new Set(); };
    window.stops = () => [...at().querySelectorAll("*")].filter(element => element.tabIndex >= 0 && shown(element)).length;
    // Groups of choices, of which Tab reaches one; the arrows go around. Those that change the view come last.
    window.groups = () => (circles = [...at().querySelectorAll("[role=radiogroup], [role=tablist]")].filter(shown).reverse()).length;
    window.nextGroup = () => {
        const group = circles.shift();
        const members = [...group.querySelectorAll("[role=radio], [role=tab]")].filter(shown);
        members.find(member => reached.has(member))?.focus();
        return members.length;
    };
    // Of choices in groups, which the arrows reach, or of all others.
    window.unreached = choices => [...acting].filter(element => choices === (element.closest("[role=radiogroup], [role=tablist]") !== null)).filter(element => at().contains(element) && shown(element))
        .filter(element => ![...reached].some(one => one === element || element.contains(one) || nameOf(one) === nameOf(element) || (element.tagName === "LABEL" && one === element.control)))
        .filter(element => element.tagName !== "TR" || !element.parentElement.querySelector("tr[tabindex='0']")) // the arrows go from row to row
        .map(nameOf);
    window.pictures = () => (canvases = [...acting].filter(element => element.tagName === "CANVAS" && at().contains(element) && shown(element))).length;
    window.focusPicture = number => {
        canvases[number].focus();
        return canvases[number].ariaLabel;
    };
}
