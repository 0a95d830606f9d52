// What of a dashboard cannot be read: texts that are cut without a title, texts on texts, what sticks out of the page.
root => {
    root ??= document.querySelector(".fl-root");
    const found = [];
    const shown = element => !element.closest(".fl-hidden, .fl-tip")
        && element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
    const scrolls = style => /auto|scroll/.test(style.overflowX + style.overflowY);
    // The part of a rectangle that its ancestors leave, and whether one that does not scroll cuts some of it.
    const clipped = ({left, top, right, bottom}, from) => {
        const part = {left, top, right, bottom, cut: false};
        let movable = false;
        for (let at = from; at && at !== root.parentElement; at = at.parentElement) {
            const style = getComputedStyle(at);
            if (style.overflowX === "visible" && style.overflowY === "visible") continue;
            const box = at.getBoundingClientRect();
            movable ||= scrolls(style) || style.textOverflow === "ellipsis";
            if (!movable && (left < box.left - 2 || top < box.top - 2 || right > box.right + 2 || bottom > box.bottom + 2)) part.cut = true;
            part.left = Math.max(part.left, box.left);
            part.top = Math.max(part.top, box.top);
            part.right = Math.min(part.right, box.right);
            part.bottom = Math.min(part.bottom, box.bottom);
        }
        if (!movable && (left < -1 || right > innerWidth + 1)) part.cut = true;
        return part;
    };
    for (const element of root.querySelectorAll("canvas, button, h2")) {
        const box = element.getBoundingClientRect();
        if (box.width > 1 && shown(element) && clipped(box, element.parentElement).cut) found.push(`cut: ${element.ariaLabel ?? element.textContent}`);
    }
    for (const element of root.querySelectorAll(":not(.fl-programmain)")) { // a graph of boxes is scrolled
        if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 1 && /auto|scroll/.test(getComputedStyle(element).overflowX) && shown(element)) found.push(`wider than its place: ${element.ariaLabel ?? element.className} ${element.scrollWidth} > ${element.clientWidth}`);
    }
    // A menu or a table lies over a text.
    const covered = ({node, left, top, right, bottom}) => {
        const over = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
        return over !== null && !over.contains(node) && !node.parentElement.contains(over) && getComputedStyle(over.closest(".fl-menu, .fl-data, .fl-sheet") ?? over).position === "absolute";
    };
    const lines = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        const element = node.parentElement;
        const words = node.textContent.trim();
        if (!words || !shown(element)) continue;
        const style = getComputedStyle(element);
        if (style.textOverflow === "ellipsis" && element.scrollWidth > element.clientWidth + 1 && !element.closest("[title]")) found.push(`no title: ${words}`);
        if (/\w\$$/.test(words)) found.push(`the name of a private member: ${words}`);
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const rect of range.getClientRects()) {
            const part = clipped(rect, element);
            if (part.cut && style.textOverflow !== "ellipsis") found.push(`cut: ${words}`);
            if (part.right - part.left > 2 && part.bottom - part.top > 2) lines.push({node, words, ...part, head: element.closest("thead") !== null, layer: element.closest(".fl-menu, .fl-sheet")}); // what is open lies over the rest
        }
    }
    lines.slice(0, 1200).forEach((one, at) => {
        for (const other of lines.slice(at + 1, 1200)) {
            const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
            const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
            if (one.node !== other.node && one.head === other.head && one.layer === other.layer && wide > 2 && high > 4 && !covered(one) && !covered(other)) found.push(`on each other: ${one.words} | ${other.words}`); // rows pass under a head
        }
    });
    // What inked.js has recorded of canvases: their texts stay apart, and inside. A tape's graph is panned: its canvas may cut it, its boxes may not.
    for (const canvas of root.querySelectorAll("canvas")) {
        if (!shown(canvas) || canvas.closest("[hidden]")) continue;
        const {width, height} = canvas.getBoundingClientRect();
        const texts = (canvas.texts ?? []).filter(({left, right, top, bottom}) => right > 2 && left < width - 2 && bottom > 2 && top < height - 2);
        const name = canvas.ariaLabel?.slice(0, 40);
        texts.forEach((one, at) => {
            const {whole} = one;
            if (/\w\$$/.test(one.words)) found.push(`the name of a private member: ${one.words}`);
            const [left, right] = /^Tape/.test(name) ? [Math.max(whole.left, -1), Math.min(whole.right, width + 1)] : [whole.left, whole.right];
            if (left < Math.max(one.left - 2, -1) || right > Math.min(one.right + 2, width + 1)) found.push(`cut in ${name}: ${one.words}`);
            for (const other of texts.slice(at + 1)) {
                const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
                const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
                if (wide > 2 && high > 2) found.push(`on each other in ${name}: ${one.words} | ${other.words}`);
            }
        });
    }
    return [...new Set(found)];
}
