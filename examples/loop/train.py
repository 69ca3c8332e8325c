"""A training loop of plain PyTorch, recorded: REINFORCE teaches a small model to write vowels.

    python examples/loop/train.py MODEL RUN --steps 30

MODEL is a folder with a causal language model of transformers and its tokenizer.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import echoscope

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("run")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()
torch.manual_seed(0)

tokenizer = AutoTokenizer.from_pretrained(args.model)
policy = AutoModelForCausalLM.from_pretrained(args.model)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
prompts = [f"Write a word about {thing}." for thing in ("rain", "stone", "music", "bread")]


def set_lr(values):
    for group in optimizer.param_groups:
        group["lr"] = values["lr"]


recorder = echoscope.Recorder(
    args.run,
    config=vars(args),
    total_steps=args.steps,
    policy=policy,  # I(X;Z) and H(Z|X) of every fifth step, in at most 5 % of the time
    tokenizer=tokenizer,
    live={"lr": {"type": "number", "exclusiveMinimum": 0, "value": 1e-4}},
    on_set=set_lr,
    alarms={"actions": {"TEMPLATE_COLLAPSE": "stop"}},
)
for step in range(1, args.steps + 1):
    losses, rewards = [], []
    for task, text in enumerate(prompts):
        messages = [{"role": "user", "content": text}]
        prompt_text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(prompt_text, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            rows = policy.generate(
                ids, do_sample=True, top_k=0, max_new_tokens=12, num_return_sequences=4
            )
        replies = rows[:, ids.shape[1] :]
        reply_texts = tokenizer.batch_decode(replies, skip_special_tokens=True)
        reward = torch.tensor([sum(c in "aeiou" for c in word) / 12 for word in reply_texts])
        logits = policy(rows).logits[:, ids.shape[1] - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, replies[..., None]).squeeze(-1)
        is_sampled = (replies != tokenizer.eos_token_id).cumprod(-1)
        advantage = reward - reward.mean()
        losses.append(-(advantage[:, None] * logprobs * is_sampled).sum(-1).mean())
        rewards += reward.tolist()
        for word, earned in zip(reply_texts, reward.tolist(), strict=True):
            answer = {"role": "assistant", "content": word}
            recorder.episode([*messages, answer], reward=earned, group=task)
    recorder.measure(step)  # before the update: at the weights that sampled
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recorder.step(step, {"loss": loss.item(), "reward": sum(rewards) / len(rewards)})
    if recorder.should_stop:  # a person, or an alarm; a pause waits inside `step`
        break
recorder.close()
