#!/usr/bin/env bash
# (b2) A page of one's own trains: one file of HTML, its check, and a tiny model that is trained on it.
#   bash tests/e2e/walks/b2_web_page.sh            in a folder that is made and removed
#   bash tests/e2e/walks/b2_web_page.sh FOLDER     there, and leave everything
#   QUICK=1 bash ...                               a few steps of each kind: that it runs, not what it teaches
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
begin "$@"
vlmrl list environments | grep -A20 '^web_page:' | grep -qm1 '^  ready' || lacks "Chromium: apt-get install chromium-headless-shell, or name it in VLMRL_BROWSER"

file my_page/index.html <<'HTML'
<!doctype html>
<style>
  body { margin: 0; background: white; }
  div { position: absolute; width: 28px; height: 28px; }
</style>
<script>
  let answer = null;
  function reset(seed) {
    const right = Math.floor(Math.random() * 4);
    for (let n = 0; n < 4; n++) {
      const box = document.createElement('div');
      box.style.cssText = `left: ${28 * (n % 2)}px; top: ${28 * (n >> 1)}px; background: ${n === right ? 'green' : 'white'}`;
      box.onclick = () => { answer = n === right ? 1 : 0; };
      document.body.append(box);
    }
    return 'Click the green button.';
  }
  function reward() { return answer; }
  function done() { return answer !== null; }
</script>
HTML

smaller=()
[ -z "${QUICK:-}" ] || smaller=(toy.world.pretrain=32 toy.world.train=16 toy.world.test=8 toy.base.steps=2 toy.base.batch=16 stages.rl.steps=2 eval.limit=4
  stages.rl.rollout.prompts_per_step=2 stages.rl.rollout.num_generations=4)
screen=(width=56 height=56 patience=60)
walk 'ok +episodes without a fault: 20 of 20' vlmrl tools env check web_page folder=my_page "${screen[@]}" --turns 3
walk 'report' vlmrl train toy_desk_grpo run.name=my_page \
  'stages.rl.environment={name: web_page, folder: my_page, width: 56, height: 56, patience: 60, explain: false, max_turns: 2, deadline: 120}' \
  eval.limit=40 "${smaller[@]}"
walk 'my_page.*finished' vlmrl list runs
finish
