// tools MODEL REQUEST...: which tool answers a request, with which arguments, and what it says.
//
// The name is one of a token trie; each argument is held to a rule of its own while the call is written, so what comes back are
// values and there is no text to parse. All prompts begin with the same text, which is evaluated once.

#include "eliza_inference.hpp"

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Arguments = std::vector<std::string>;

struct Tool {
    std::string name, parameters, description;
    Arguments rules;  // a regular expression for each argument
    std::function<std::string(const Arguments &)> run;
};

const std::vector<Tool> & tools() {
    static const std::vector<Tool> all = {
        {"weather", "city, days", "the weather of the next days in a city", {"[A-Z][a-z]{2,14}", "[1-9]"},
         [](const Arguments & given) { return "no idea about " + given[0] + " in " + given[1] + " days"; }},
        {"add", "a, b", "the sum of two numbers", {"0|[1-9][0-9]{0,5}", "0|[1-9][0-9]{0,5}"},
         [](const Arguments & given) { return std::to_string(std::atol(given[0].c_str()) + std::atol(given[1].c_str())); }},
        {"timer", "minutes", "rings after some minutes", {"[1-9][0-9]?"},
         [](const Arguments & given) { return "rings in " + given[0] + " minutes"; }},
    };
    return all;
}

std::string introduction() {
    std::string text = "Tools:\n";
    for (const Tool & tool : tools()) text += tool.name + "(" + tool.parameters + "): " + tool.description + "\n";
    return text;
}

/// What follows a text, held to what was set before.
std::string follows(eliza::Stream & stream, const std::string & text) {
    stream.prefill(stream.tokenize(text));
    return stream.generate(-1, 0.0f).text();
}

void call(eliza::Stream & stream, const std::string & request) {
    std::string text = introduction() + "Request: " + request + "\nCall:\n";
    std::vector<std::string> names;
    for (const Tool & tool : tools()) names.push_back(tool.name);
    stream.set_trie(stream.build_trie("tool", names, text, "(").json, eliza::TrieMode::score_leaves);
    const std::size_t begins = text.size();
    const std::string answer = follows(stream, text);  // the name, and the bracket that follows every name
    stream.clear_trie();
    text += answer;
    for (const Tool & tool : tools()) {
        if (answer != tool.name + "(") continue;
        Arguments arguments;
        for (const std::string & rule : tool.rules) {
            if (!arguments.empty()) text += ", ";
            stream.set_grammar(R"({"regex": ")" + rule + R"("})");
            arguments.push_back(follows(stream, text));
            text += arguments.back();
        }
        stream.clear_grammar();
        std::cout << text.substr(begins) << ") = " << tool.run(arguments) << '\n';
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 3) {
        std::cerr << "usage: tools MODEL REQUEST...\n";
        return 2;
    }
    try {
        eliza::Stream stream({argv[1]});
        eliza::SamplingOptions options = stream.sampling();
        options.on_span_end = eliza::SpanEnd::stop;  // The generation ends where the name does.
        stream.configure(options);
        for (int i = 2; i < argc; i++) call(stream, argv[i]);
        return 0;
    } catch (const std::exception & error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
