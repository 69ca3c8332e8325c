"""Chat templates with tools, in small: they follow the formats that the model families document.

Written for these tests. What matters is kept: where the tools are declared, what a tool's result
looks like, what is escaped, and what a template does to replies of the past.
"""

from __future__ import annotations

QWEN2_5 = """
{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' else 'You help.' -%}
{{- '<|im_start|>system\n' + system -}}
{%- if tools -%}
{{- '\n\n# Tools\n\n<tools>' -}}
{%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\n</tools>\n\nReply with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for m in messages -%}
{%- if m['role'] == 'user' or m['role'] == 'assistant' -%}
{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' -}}
{%- elif m['role'] == 'tool' -%}
{%- if loop.index0 == 0 or messages[loop.index0 - 1]['role'] != 'tool' -%}
{{- '<|im_start|>user' -}}
{%- endif -%}
{{- '\n<tool_response>\n' + m['content'] + '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\n\n</think>\n\n' -}}
{%- endif -%}
{%- endif -%}
"""

# Replies before the last question lose their reasoning, the last one is shown with it.
QWEN3 = QWEN2_5.replace(
    "{%- if m['role'] == 'user' or m['role'] == 'assistant' -%}",
    "{%- if m['role'] == 'assistant' and loop.last -%}"
    "{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m['content'] + '<|im_end|>\n' -}}"
    "{%- elif m['role'] == 'user' or m['role'] == 'assistant' -%}",
)

HERMES = """
{{- bos_token if bos_token else '' -}}
{{- '<|im_start|>system\n' -}}
{%- if tools -%}
{{- 'You call functions: <tools> ' -}}
{%- for tool in tools -%}{{- tool | tojson + '\n' -}}{%- endfor -%}
{{- '</tools> For each call reply with <tool_call>\n{...}\n</tool_call><|im_end|>\n' -}}
{%- else -%}
{{- 'You help.<|im_end|>\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m['role'] == 'tool' -%}
{%- if loop.previtem is not defined or loop.previtem['role'] != 'tool' -%}
{{- '<|im_start|>tool\n' -}}
{%- endif -%}
{{- '<tool_response>\n' + m['content'] + '\n</tool_response>' -}}
{%- if loop.nextitem is defined and loop.nextitem['role'] == 'tool' -%}{{- '\n' -}}
{%- else -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- else -%}
{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

LLAMA3_1 = """
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}
{%- set system = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' -}}
{%- if tools -%}{{- 'Environment: ipython\n' -}}{%- endif -%}
{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\n\n' + system + '<|eot_id|>' -}}
{%- if tools -%}
{%- set question = messages[0]['content'] | trim -%}{%- set messages = messages[1:] -%}
{{- '<|start_header_id|>user<|end_header_id|>\n\nGiven these functions, reply with JSON: ' -}}
{{- '{"name": function name, "parameters": arguments}.\n\n' -}}
{%- for tool in tools -%}{{- tool | tojson(indent=4) + '\n\n' -}}{%- endfor -%}
{{- question + '<|eot_id|>' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m['role'] == 'tool' -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' -}}
{%- if m['content'] is mapping or m['content'] is iterable -%}{{- m['content'] | tojson -}}
{%- else -%}{{- m['content'] -}}{%- endif -%}
{{- '<|eot_id|>' -}}
{%- else -%}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim -}}
{{- '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
"""

FAMILIES = {
    "qwen2.5": ("chatml", QWEN2_5),
    "qwen3": ("chatml", QWEN3),
    "hermes": ("chatml", HERMES),
    "llama3.1": ("llama3", LLAMA3_1),
}
"""Name -> (vocabulary of tests/core/conftest.py, template)."""
