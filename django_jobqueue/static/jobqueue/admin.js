// Carries a large operation through while its page is open: one request of about a second after the other.
"use strict";
{
    const section = document.querySelector("[data-jq-operation][data-jq-running]");
    const show = (name, text) => {
        const element = document.querySelector(`[data-jq="${name}"]`);
        if (element) element.textContent = text;
    };
    const advance = async () => {
        const token = section.querySelector("[name=csrfmiddlewaretoken]").value;
        const answer = await fetch(section.dataset.jqAdvance, {
            method: "POST",
            headers: {"X-CSRFToken": token, "Accept": "application/json"},
        });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const reached = await answer.json();
        document.querySelector('[data-jq="percent"]').value = reached.percent;
        show("percent-text", `${reached.percent} %`);
        show("moved", reached.moved);
        show("refused", reached.refused);
        show("state", reached.state);
        return reached.state === "running";
    };
    const carryThrough = async () => {
        let failures = 0;
        const problem = section.querySelector('[data-jq="problem"]');
        for (;;) {
            try {
                if (!await advance()) break;
                failures = 0;
                problem.classList.add("hidden");
            } catch {
                failures += 1;
                problem.classList.remove("hidden");
                if (failures > 5) return;
                await new Promise(done => setTimeout(done, 1000 * failures));
            }
        }
        window.location.reload();
    };
    if (section) carryThrough();
}
