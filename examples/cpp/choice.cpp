// choice MODEL TRIE.json PROMPT: which of a closed set of names follows the prompt.
//
// Prints the probabilities of all names, then the most probable one. `eliza-inference trie` makes the payload from names.

#include "eliza_inference.hpp"

#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>

namespace {

std::string read_file(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    if (!file || !bytes) throw std::runtime_error(path + " cannot be read");
    return bytes.str();
}

void choose(const std::string & model, const std::string & trie, const std::string & prompt) {
    eliza::Stream stream({model});
    eliza::SamplingOptions options = stream.sampling();
    options.on_span_end = eliza::SpanEnd::stop;  // The generation ends where the name does.
    stream.configure(options);

    stream.set_trie(trie, eliza::TrieMode::score_leaves);
    stream.prefill(stream.tokenize(prompt));
    std::cout << std::fixed << std::setprecision(6);
    for (const eliza::LeafScore & leaf : stream.score_trie().leaves) {
        std::cout << std::exp(leaf.logprob) << "  " << leaf.name << '\n';
    }
    std::cout << stream.generate(-1, 0.0f).text() << '\n';
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 4) {
        std::cerr << "usage: choice MODEL TRIE.json PROMPT\n";
        return 2;
    }
    try {
        choose(argv[1], read_file(argv[2]), argv[3]);
        return 0;
    } catch (const std::exception & error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
