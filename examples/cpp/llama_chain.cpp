// llama_chain MODEL TRIE.json PROMPT N: a token trie in a sampler chain of llama.cpp, whose model it is.
//
// Prints the N tokens that follow the prompt, always the likeliest; the first of them spell one of the trie's names.

#include "ggml-backend.h"
#include "llama.h"

#include "eliza_inference.hpp"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

template <auto free>
struct Free {
    template <class T>
    void operator()(T * object) const { free(object); }
};
using Model = std::unique_ptr<llama_model, Free<llama_model_free>>;
using Context = std::unique_ptr<llama_context, Free<llama_free>>;
using Chain = std::unique_ptr<llama_sampler, Free<llama_sampler_free>>;

std::string read_file(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    if (!file || !bytes) throw std::runtime_error(path + " cannot be read");
    return bytes.str();
}

void generate(const std::string & path, const std::string & payload, const std::string & prompt, int n) {
    const Model model(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    if (!model) throw std::runtime_error(path + " cannot be loaded");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_threads = params.n_threads_batch = eliza_inference_default_thread_count();
    const Context context(llama_init_from_model(model.get(), params));
    if (!context) throw std::runtime_error("there is no memory for a context");
    const llama_vocab * vocab = llama_model_get_vocab(model.get());

    // Until the chain has it, the sampler is freed by the libllama that made it.
    eliza::Sampler trie(payload, eliza::TrieMode::greedy, vocab, llama_sampler_free);
    const Chain chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), trie.release());
    llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());

    std::vector<llama_token> tokens(prompt.size() + 8);
    tokens.resize(static_cast<std::size_t>(std::max(0, llama_tokenize(vocab, prompt.data(), static_cast<int32_t>(prompt.size()),
                                                                      tokens.data(), static_cast<int32_t>(tokens.size()), true, false))));
    for (int i = 0; i < n; i++) {
        if (llama_decode(context.get(), llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()))) != 0) {
            throw std::runtime_error("the prompt cannot be evaluated");
        }
        tokens = {llama_sampler_sample(chain.get(), context.get(), -1)};  // accepts it as well
        if (llama_vocab_is_eog(vocab, tokens[0])) break;
        char text[64];
        const int32_t length = llama_token_to_piece(vocab, tokens[0], text, sizeof text, 0, false);
        if (length > 0) std::cout.write(text, length);
    }
    std::cout << '\n';
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 5) {
        std::cerr << "usage: llama_chain MODEL TRIE.json PROMPT N\n";
        return 2;
    }
    ggml_backend_load_all();
    try {
        generate(argv[1], read_file(argv[2]), argv[3], std::stoi(argv[4]));
        return 0;
    } catch (const std::exception & error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
