// The page's clock runs ten times as fast: what is written four times a second is written at nearly every frame.
{
    const [now, repeat] = [performance.now.bind(performance), window.setInterval.bind(window)];
    performance.now = () => 10 * now();
    window.setInterval = (act, delay = 0, ...rest) => repeat(act, delay / 10, ...rest);
}
