// Draws the charts of the first page with uPlot (see vendor/uplot). The numbers are in the page; so is a still picture,
// which stays without JavaScript. A click on a chart opens the jobs of that step.
"use strict";
{
    const HEIGHT = 190, FONT = "11px system-ui, sans-serif";
    const FROM = "BEGIN-OF-STEP", TO = "END-OF-STEP"; // in the links of the lines
    const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const numbers = new Intl.NumberFormat("en", {maximumSignificantDigits: 3});
    const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});

    // As the pages of the server write durations and numbers.
    const duration = seconds => {
        if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
        if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
        const place = UNITS.findIndex(([size]) => seconds >= size), [size, unit] = UNITS[place];
        const rest = Math.floor(seconds) % size, [small, smallUnit] = UNITS[place + 1] || [1, ""];
        const more = smallUnit && Math.floor(rest / small);
        return `${Math.floor(seconds / size)} ${unit}${more ? ` ${more} ${smallUnit}` : ""}`;
    };
    const count = value => (value >= 100 || Number.isInteger(value) ? whole : numbers).format(value);
    const text = (series, value) => value == null ? "–" : series.unit === "s" ? duration(value) : `${count(value)}${series.unit}`;

    const clock = (spec, options) => {
        try {
            return new Intl.DateTimeFormat("en-GB", {...options, timeZone: spec.zone});
        } catch {
            return new Intl.DateTimeFormat("en-GB", options); // a zone that the browser does not know
        }
    };
    const HOUR = {hour: "2-digit", minute: "2-digit"}, DAY = {day: "numeric", month: "short"};

    const options = (plot, spec) => {
        const figure = plot.closest("figure");
        const {color: quiet, borderTopColor: grid} = getComputedStyle(figure.querySelector(".jq-legend"));
        const keys = [...figure.querySelectorAll(".jq-key")].map(key => getComputedStyle(key).backgroundColor);
        const span = spec.step * spec.times.length;
        const times = clock(spec, span > 2 * 86400 ? DAY : HOUR);
        const scale = series => series.right ? "right" : "left";
        const axis = series => ({
            scale: scale(series),
            side: series.right ? 1 : 3,
            stroke: series.right ? keys[spec.series.indexOf(series)] : quiet,
            font: FONT,
            grid: series.right ? {show: false} : {stroke: grid, width: 1},
            ticks: {show: false},
            values: (_, splits) => splits.map(value => value == null ? "" : text(series, value)),
            // As wide as its longest label, so that none is cut.
            size: (_, values) => 14 + 6.5 * Math.max(3, ...(values || []).map(value => value.length)),
        });
        const right = spec.series.find(series => series.right);
        const upwards = (_, lowest, highest) => [0, highest > 0 ? highest * 1.05 : 1];
        return {
            width: plot.clientWidth,
            height: HEIGHT,
            legend: {show: false},
            cursor: {drag: {x: false, y: false}, y: false, points: {size: 6}},
            scales: {x: {time: true}, left: {range: upwards}, ...(right ? {right: {range: upwards}} : {})},
            series: [{}, ...spec.series.map((series, place) => ({
                scale: scale(series),
                stroke: keys[place],
                width: 1.75,
                points: {show: (u, i) => u.data[i].filter(value => value != null).length === 1},
            }))],
            axes: [
                {stroke: quiet, font: FONT, grid: {show: false}, ticks: {stroke: grid, width: 1, size: 4}, size: 28, space: 60,
                    values: (_, splits) => splits.map(value => times.format(value * 1000))},
                axis(spec.series[0]),
                ...(right ? [axis(right)] : []),
            ],
            hooks: {setCursor: [u => readOut(plot, u.cursor.idx)]},
        };
    };

    // The values under the pointer, or the latest, beside the names of the lines.
    const readOut = (plot, place) => {
        const {spec} = plot.jq, figure = plot.closest("figure");
        const isOver = place != null && plot.matches(":hover");
        figure.querySelector("[data-jq-time]").textContent = isOver
            ? clock(spec, {...(spec.step * spec.times.length > 90000 ? DAY : {}), ...HOUR}).format(spec.times[place] * 1000)
            : "";
        figure.querySelectorAll("[data-jq-value]").forEach((shown, line) => {
            const {values} = spec.series[line];
            const value = isOver ? values[place] : values.findLast(each => each != null);
            shown.textContent = text(spec.series[line], value);
        });
    };

    // The list of the jobs of the line that is closest to the pointer.
    const open = plot => {
        const {spec, u} = plot.jq, {idx, top} = u.cursor;
        if (idx == null) return;
        const near = spec.series
            .map(series => ({series, far: series.values[idx] == null ? Infinity
                : Math.abs(u.valToPos(series.values[idx], series.right ? "right" : "left") - top)}))
            .reduce((best, each) => each.far < best.far ? each : best);
        if (near.far === Infinity) return;
        const {begins, ends} = spec;
        window.location.href = near.series.link
            .replace(FROM, encodeURIComponent(begins[idx])).replace(TO, encodeURIComponent(ends[idx]));
    };

    const source = plot => plot.closest("[data-jq-steps]").dataset.jqSteps + plot.dataset.jqChart;
    const draw = plot => {
        const steps = JSON.parse(plot.closest("[data-jq-steps]").dataset.jqSteps);
        const spec = {...steps, ...JSON.parse(plot.dataset.jqChart)};
        const data = [spec.times, ...spec.series.map(series => series.values)];
        if (!spec.times.length) return;
        if (plot.jq) plot.jq.u.destroy();
        plot.replaceChildren();
        plot.classList.add("jq-drawn");
        plot.jq = {spec, source: source(plot)};
        plot.jq.u = new uPlot(options(plot, spec), data, plot);
        plot.jq.u.over.addEventListener("click", () => open(plot));
        readOut(plot, null);
    };
    const all = () => document.querySelectorAll("[data-jq-chart]");
    const again = () => all().forEach(draw);
    const changed = () => all().forEach(plot => {
        if (plot.jq?.source !== source(plot)) draw(plot);
        else readOut(plot, plot.jq.u.cursor.idx);
    });

    document.addEventListener("DOMContentLoaded", () => {
        if (typeof uPlot === "undefined") return;
        again();
        window.addEventListener("jq-drawn", changed);
        new ResizeObserver(() => all().forEach(plot => {
            if (plot.jq && plot.clientWidth !== plot.jq.u.width) plot.jq.u.setSize({width: plot.clientWidth, height: HEIGHT});
        })).observe(document.querySelector("[data-jq-body]"));
        // The colours are those of the page, which can change between light and dark.
        new MutationObserver(again).observe(document.documentElement, {attributeFilter: ["data-theme", "data-bs-theme", "class"]});
        window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    });
}
