//! The turns of well-known families, for files that bring no template. Which family it is, the control tokens tell.

use crate::vocab::Vocab;

/// A family: the tokens that only it has, and its turns.
struct Family {
    tokens: &'static [&'static str],
    template: &'static str,
}

const FAMILIES: [Family; 5] = [
    // ChatML, <https://github.com/openai/openai-python/blob/v0.28.1/chatml.md>: Qwen and many others.
    Family {
        tokens: &["<|im_start|>", "<|im_end|>"],
        template: "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    },
    // <https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/>
    Family {
        tokens: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        template: "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + \
                   m.content | trim + '<|eot_id|>' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    },
    // <https://ai.google.dev/gemma/docs/core/prompt-structure>; there is no system turn.
    Family {
        tokens: &["<start_of_turn>", "<end_of_turn>"],
        template: "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}\
                   {{ raise_exception('System role not supported') }}{% endif %}\
                   {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + \
                   '<end_of_turn>\n' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    },
    // <https://huggingface.co/microsoft/Phi-3-mini-4k-instruct#chat-format>
    Family {
        tokens: &["<|user|>", "<|assistant|>", "<|end|>"],
        template: "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    },
    // <https://docs.mistral.ai/guides/tokenization/>; there is no system turn.
    Family {
        tokens: &["[INST]", "[/INST]"],
        template: "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}\
                   {{ '[INST] ' + m.content + '[/INST]' }}\
                   {% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}\
                   {% else %}{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}",
    },
];

/// The template of the vocabulary's family.
pub(super) fn of(vocab: &Vocab) -> Option<&'static str> {
    let known = FAMILIES
        .iter()
        .find(|family| family.tokens.iter().all(|wanted| vocab.control_texts().any(|text| text == *wanted)));
    known.map(|family| family.template)
}
