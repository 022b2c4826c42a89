// The lanes of the shop: asks about once a second what the orders do, and moves their chips. It does not ask while the tab is
// hidden. If the server does not answer, the page says so and asks again.
"use strict";
{
    const EVERY_MS = 700; // less than the second that a failed order waits for its next attempt
    const PATIENCE_MS = 5000;
    const NOTICE_MS = 7000;
    const NO_JOB = "00000000-0000-0000-0000-000000000000";
    const WORDS = {
        waiting: "waiting", running: "being packed", retrying: "failed once, waits for its next attempt",
        failed: "failed for good", shipped: "shipped", skipped: "skipped",
    };
    const page = document.body;
    const element = id => document.getElementById(id);
    const lanes = new Map(); // by customer: the element of the lane, and the chips of its orders by number
    const jobUrl = job => page.dataset.jobUrl.replace(NO_JOB, job);
    const clock = () => new Date().toLocaleTimeString("en-GB");
    const write = (where, text) => {
        if (where.textContent !== text) where.textContent = text; // a screen reader reads what is written again
    };

    // ------------------------------------------------------------------------------------------------ one lane

    const addLane = ({customer, name}) => {
        const item = element("lane").content.firstElementChild.cloneNode(true);
        item.id = `customer-${customer}`;
        item.querySelector("h2").textContent = name;
        item.querySelector(".track").setAttribute("aria-label", `Orders of ${name}`);
        const [order, breaking] = item.querySelectorAll(".acts button");
        order.setAttribute("aria-label", `Order for ${name}`);
        breaking.textContent = `Break ${name}'s card`;
        for (const input of item.querySelectorAll("[name=customer]")) input.value = customer;
        element("lanes").append(item);
        return {item, name, chips: new Map()};
    };

    // An order that runs or failed is at 0, those behind it at -1, -2 and so on, and finished ones at 1, 2 and so on.
    const slotsOf = orders => {
        const finished = orders.filter(each => each.stage === "shipped" || each.stage === "skipped").reverse();
        const open = orders.filter(each => !finished.includes(each));
        const ahead = open.length && open[0].stage === "waiting" ? 1 : 0;
        const slots = new Map();
        finished.forEach((each, place) => slots.set(each.number, place + 1));
        open.forEach((each, place) => slots.set(each.number, -place - ahead));
        return slots;
    };

    const newChip = order => {
        const chip = document.createElement("li");
        const link = document.createElement("a");
        link.href = jobUrl(order.job);
        link.textContent = order.number;
        chip.append(link);
        return chip;
    };

    const showChips = (lane, orders) => {
        const track = lane.item.querySelector(".track");
        const step = parseFloat(getComputedStyle(track).getPropertyValue("--step"));
        const most = Math.floor((track.clientWidth - step) / 2 / step); // chips on each side
        const slots = slotsOf(orders);
        for (const order of orders) {
            const slot = slots.get(order.number);
            let chip = lane.chips.get(order.number);
            if (!chip) {
                if (Math.abs(slot) > most) continue;
                chip = newChip(order);
                chip.classList.add("away");
                chip.style.setProperty("--slot", lane.isShown ? -most - 1 : slot);
                const next = [...lane.chips].find(([number]) => number > order.number);
                track.insertBefore(chip, next ? next[1] : null);
                lane.chips = new Map([...lane.chips, [order.number, chip]].sort(([one], [other]) => one - other));
                chip.getBoundingClientRect(); // so that it moves from there
            }
            chip.style.setProperty("--slot", Math.max(-most - 1, Math.min(most + 1, slot)));
            chip.classList.toggle("away", Math.abs(slot) > most);
            if (Math.abs(slot) <= most) delete chip.dataset.leaves;
            const link = chip.firstElementChild;
            link.className = order.stage;
            link.title = `Order ${order.number}: ${order.item}, ${WORDS[order.stage]}`;
            link.setAttribute("aria-label", link.title);
        }
        for (const [number, chip] of lane.chips) {
            const slot = slots.get(number);
            if (slot !== undefined && Math.abs(slot) <= most) continue;
            chip.classList.add("away");
            if (chip.dataset.leaves && !chip.contains(document.activeElement)) {
                chip.remove();
                lane.chips.delete(number);
            }
            chip.dataset.leaves = "yes";
        }
        // One chip of each lane can be reached with Tab, the others from it with the arrow keys.
        const [nearest] = orders.map(each => each.number)
            .filter(number => lane.chips.has(number))
            .sort((one, other) => Math.abs(slots.get(one)) - Math.abs(slots.get(other)));
        for (const [number, chip] of lane.chips) chip.firstElementChild.tabIndex = number === nearest ? 0 : -1;
        lane.isShown = true;
    };

    // What blocks the lane, and the buttons to decide. The texts stay while the panel closes.
    const showBlocker = (lane, orders) => {
        const {item, name} = lane;
        const failed = orders.find(each => each.stage === "failed");
        const behind = orders.filter(each => each.stage === "waiting").length;
        const panel = item.querySelector(".blocked");
        write(item.querySelector(".waiting"), `${behind} waiting`);
        item.classList.toggle("stopped", Boolean(failed));
        lane.error = failed && failed.error;
        if (failed) {
            const [why, wait] = panel.querySelectorAll("p > *");
            const [skip, retry] = panel.querySelectorAll("button");
            const waits = behind === 1 ? "1 order waits" : `${behind || "No"} orders wait`;
            write(why, `Order ${failed.number} failed for good: ${failed.error}.`);
            write(wait, `${waits} behind it.`);
            write(skip, `Skip order ${failed.number}`);
            skip.setAttribute("aria-label", `Skip order ${failed.number} of ${name}`);
            retry.setAttribute("aria-label", `Fix the card and retry order ${failed.number} of ${name}`);
            panel.querySelector("a").href = jobUrl(failed.job);
            for (const input of panel.querySelectorAll("[name=job]")) input.value = failed.job;
        } else if (panel.contains(document.activeElement)) {
            item.querySelector(".acts button").focus();
        }
        panel.inert = !failed;
    };

    // ---------------------------------------------------------------------------------------------- the whole page

    const showStatus = () => {
        const blocked = [...lanes.values()].filter(lane => lane.error);
        const others = lanes.size - blocked.length;
        const key = blocked.map(lane => lane.item.id + lane.error).join();
        const status = element("status");
        page.classList.toggle("is-blocked", blocked.length > 0);
        if (status.dataset.shows === key) return;
        status.dataset.shows = key;
        if (!blocked.length) return status.replaceChildren("No lane is blocked. Break a card to see what happens.");
        const parts = blocked.flatMap(lane => {
            const link = document.createElement("a");
            link.href = `#${lane.item.id}`;
            link.textContent = `${lane.name}'s lane is blocked`;
            return [link, `: ${lane.error}. `];
        });
        status.replaceChildren(...parts, others === 1 ? "The other lane is not delayed." : `The other ${others} lanes are not delayed.`);
    };

    const show = board => {
        for (const each of board.lanes) {
            if (!lanes.has(each.customer)) lanes.set(each.customer, addLane(each));
            showChips(lanes.get(each.customer), each.orders);
            showBlocker(lanes.get(each.customer), each.orders);
        }
        write(element("rate"), board.per_second.toFixed(1));
        write(element("shipped"), board.shipped.toLocaleString("en"));
        showStatus();
    };

    const connection = (state, text) => {
        for (const each of ["live", "lost", "paused"]) page.classList.toggle(`is-${each}`, each === state);
        write(element("live"), text);
    };

    let timer = null;
    let asking = false;
    let answered = clock();
    const ask = async () => {
        clearTimeout(timer);
        if (document.hidden) return connection("paused", `paused, ${answered}`);
        if (asking) return;
        asking = true;
        try {
            const answer = await fetch(page.dataset.stateUrl, {signal: AbortSignal.timeout(PATIENCE_MS)});
            if (!answer.ok) throw new Error(`status ${answer.status}`);
            show(await answer.json());
            answered = clock();
            connection("live", `live, ${answered}`);
        } catch {
            connection("lost", "not reachable");
            element("status").dataset.shows = "lost";
            write(element("status"), `The shop has not answered since ${answered}. The page keeps asking.`);
        } finally {
            asking = false;
            timer = setTimeout(ask, EVERY_MS);
        }
    };

    // -------------------------------------------------------------------------------------------------- the buttons

    let fading = null;
    const notice = text => {
        clearTimeout(fading);
        write(element("notice"), text);
        fading = setTimeout(() => write(element("notice"), ""), NOTICE_MS);
    };
    // Read when it is sent, because a login to the admin in another tab changes it.
    const token = () => (document.cookie.match(/(?:^|; )csrftoken=([^;]*)/) || [])[1] || "";
    const post = (url, body) => fetch(url, {method: "POST", headers: {"X-CSRFToken": token()}, body});

    const press = async form => {
        try {
            const answer = await post(form.action, new URLSearchParams(new FormData(form)));
            const isJson = (answer.headers.get("Content-Type") || "").startsWith("application/json");
            notice(isJson ? (await answer.json()).text : `The shop refused this with status ${answer.status}. Reload the page.`);
        } catch {
            notice("The shop does not answer.");
        }
        ask();
    };

    const startExport = async form => {
        const button = form.querySelector("button");
        const shown = form.querySelector(".export");
        const link = shown.querySelector("a");
        button.disabled = true;
        try {
            const {id} = await (await post(page.dataset.exportUrl)).json();
            link.href = jobUrl(id);
            shown.hidden = false;
            for (;;) {
                const job = await (await fetch(page.dataset.progressUrl.replace(NO_JOB, id))).json();
                shown.querySelector("progress").value = job.progress;
                write(link, `${job.state}: ${job.text}`);
                if (job.ended) break;
                await new Promise(next => setTimeout(next, 300));
            }
        } catch {
            notice("The shop does not answer.");
        }
        button.disabled = false;
    };

    document.addEventListener("submit", event => {
        event.preventDefault();
        (event.target.id === "export" ? startExport : press)(event.target);
    });
    document.addEventListener("keydown", event => {
        const track = event.target.closest(".track");
        const way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
        if (!track || !way) return;
        const links = [...track.querySelectorAll("li:not(.away) a")].reverse(); // as they lie: the last order on the left
        const next = links[links.indexOf(event.target) + way];
        if (next) next.focus();
        event.preventDefault();
    });
    document.addEventListener("visibilitychange", ask);
    ask();
}
