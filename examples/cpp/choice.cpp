// choice MODEL PROMPT NAME...: which of the names follows the prompt.
//
// Prints the probabilities of all names, then the most probable one. A space between prompt and name belongs to the name.

#include "eliza_inference.hpp"

#include <cmath>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace {

void choose(const std::string & model, const std::string & prompt, const std::vector<std::string> & names) {
    eliza::Stream stream({model});
    eliza::SamplingOptions options = stream.sampling();
    options.on_span_end = eliza::SpanEnd::stop;  // The generation ends where the name does.
    stream.configure(options);

    const eliza::TriePayload trie = stream.build_trie("choice", names, prompt);
    if (!trie.warnings.empty()) std::cerr << trie.warnings << '\n';
    stream.set_trie(trie.json, eliza::TrieMode::score_leaves);
    stream.prefill(stream.tokenize(prompt));
    std::cout << std::fixed << std::setprecision(6);
    for (const eliza::LeafScore & leaf : stream.score_trie().leaves) {
        std::cout << std::exp(leaf.logprob) << "  " << leaf.name << '\n';
    }
    std::cout << stream.generate(-1, 0.0f).text() << '\n';
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 4) {
        std::cerr << "usage: choice MODEL PROMPT NAME...\n";
        return 2;
    }
    try {
        choose(argv[1], argv[2], {argv + 3, argv + argc});
        return 0;
    } catch (const std::exception & error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
