// chat MODEL [MAX_TOKENS [TEMPERATURE [SEED]]]: a conversation, line by line from standard input.
//
// Ctrl-C ends the answer that is being written, and without one the program.

#include "eliza_inference.hpp"

#include <chrono>
#include <csignal>
#include <iostream>
#include <string>

namespace {

constexpr int slot = 0;  // The conversation stays in one slot, so each turn evaluates only what is new.

volatile std::sig_atomic_t interrupted = 0;

void chat(const std::string & model, int max_tokens, float temperature, std::uint32_t seed) {
    eliza::Stream stream({model});
    eliza::SamplingOptions options = stream.sampling();
    options.seed = seed;
    options.stop = {"\nUser:"};
    stream.configure(options);

    std::string transcript, line;
    while (!interrupted && std::getline(std::cin, line)) {
        transcript += (transcript.empty() ? "User: " : "\nUser: ") + line + "\nAssistant:";
        stream.prefill(stream.tokenize(transcript), slot);

        interrupted = 0;
        auto answer = stream.generate(max_tokens, temperature, 1.0f);
        while (const auto step = answer.poll(std::chrono::milliseconds(100))) {
            std::cout << step->text << std::flush;
            transcript += step->text;
            if (interrupted) stream.cancel();
        }
        interrupted = 0;
        std::cout << std::endl;

        const eliza::Usage usage = stream.usage();
        std::cerr << "[" << usage.prompt_tokens << " prompt tokens, " << usage.prompt_tokens_reused << " of them kept from before, "
                  << usage.completion_tokens << " generated]\n";
    }
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 2 || argc > 5) {
        std::cerr << "usage: chat MODEL [MAX_TOKENS [TEMPERATURE [SEED]]]\n";
        return 2;
    }
    std::signal(SIGINT, [](int) { interrupted = 1; });
    try {
        chat(argv[1], argc > 2 ? std::stoi(argv[2]) : 256, argc > 3 ? std::stof(argv[3]) : 0.8f,
             argc > 4 ? static_cast<std::uint32_t>(std::stoul(argv[4])) : ELIZA_SEED_RANDOM);
        return 0;
    } catch (const std::exception & error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
