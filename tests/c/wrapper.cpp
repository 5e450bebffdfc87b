/* eliza_inference.hpp, over the library that the other cases open by themselves: who owns what, what is thrown, and that
 * nothing gets lost on the way from C to C++. */

#include "eliza_inference.hpp"
#include "host.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <thread>

#include <unistd.h>

namespace {

using eliza::Error;
using eliza::Finish;
using eliza::Generation;
using eliza::Stream;
using eliza::Token;
using eliza::TrieMode;

static_assert(!std::is_copy_constructible_v<Stream> && !std::is_copy_assignable_v<Stream>);
static_assert(!std::is_copy_constructible_v<Generation> && !std::is_copy_assignable_v<Generation>);
static_assert(!std::is_copy_constructible_v<eliza::Sampler> && !std::is_copy_assignable_v<eliza::Sampler>);
static_assert(std::is_nothrow_move_constructible_v<Stream> && std::is_nothrow_move_assignable_v<Stream>);
static_assert(std::is_nothrow_move_constructible_v<Generation> && std::is_nothrow_move_assignable_v<Generation>);
static_assert(std::is_move_constructible_v<eliza::Sampler> && std::is_move_assignable_v<eliza::Sampler>);

Stream open_stream(std::int32_t context = 512) {
    eliza::OpenOptions options;
    options.model = model_path();
    options.context = context;
    options.threads = 2;
    Stream stream(options);
    eliza::SamplingOptions sampling = stream.sampling();
    sampling.ignore_eos = true;
    stream.configure(sampling);
    return stream;
}

const char * const PROMPT = "Once upon a time";

std::vector<Token> tokens_left(Generation generation) {
    std::vector<Token> tokens;
    for (const eliza::Step & step : generation) tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    return tokens;
}

/* The call throws an Error of this code, whose text has this part. */
#define CHECK_THROWS(code, part, call) \
    check_throws(__FILE__, __LINE__, #call, (code), (part), [&] { static_cast<void>(call); })
template <class Call>
void check_throws(const char * file, int line, const char * what, std::int32_t code, const char * part, Call call) {
    try {
        call();
    } catch (const Error & error) {
        if (error.code() != code) fail(file, line, "%s has the code %d (%s), not %d", what, error.code(), error.what(), code);
        if (error.what()[0] == '\0' || std::strstr(error.what(), part) == nullptr) {
            fail(file, line, "%s says \"%s\", not \"%s\"", what, error.what(), part);
        }
        return;
    }
    fail(file, line, "%s did not throw", what);
}

void errors() {
    CHECK_THROWS(ELIZA_ERR_IO, "/no/such/model.gguf", Stream({"/no/such/model.gguf"}));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "`model`", Stream({std::string("a\0b", 3)}));
    Stream stream = open_stream(64);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.prefill({}));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "1000000", stream.prefill({1000000}));
    CHECK_THROWS(ELIZA_ERR_OOM, "", stream.prefill(std::vector<Token>(1000, 5)));
    CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.generate(1));
    CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.generate([](Token, std::string_view) {}, 1));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.arm_next_trie());
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.score_trie());
    CHECK_THROWS(ELIZA_ERR_TRIE, "", stream.set_trie("{", TrieMode::greedy));
    stream.prefill({1, 2, 3});
    CHECK_THROWS(ELIZA_ERR_TRIE, "", stream.generate(1));
    stream.clear_trie();
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "nonsense", stream.set_chain("nonsense=3"));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "1000000", stream.detokenize({1000000}));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.sampled());
    eliza::SamplingOptions options = stream.sampling();
    options.logit_bias = {{1000000, 1.0f}};
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "1000000", stream.configure(options));
    options.logit_bias.clear();
    options.stop = {std::string("a\0b", 3)};
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "`stop`", stream.configure(options));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.prefill({1}, 100));

    stream.prefill({1, 2, 3});
    CHECK(!stream.generate(-1, 0.0f).text().empty());
    CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_CONTEXT);
}

/* Refused while the stream is at work, and the work goes on. */
void busy() {
    Stream stream = open_stream();
    stream.prefill(stream.tokenize(PROMPT));
    int tokens = 0;
    stream.generate([&](Token token, std::string_view) {
        if (token < 0 || tokens++ != 0) return;
        CHECK_EQ(stream.status(), ELIZA_STATUS_GENERATING);
        CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.prefill({1}));
        CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.generate(1));
        CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.clear_trie());
        CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.set_trie("{}", TrieMode::greedy));
        CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.configure(eliza::SamplingOptions()));
        CHECK_THROWS(ELIZA_ERR_BUSY, "", stream.score_trie());
        CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.build_trie("p", {}));
        CHECK(!stream.build_trie("p", {"n"}).json.empty());
        CHECK_EQ(stream.tokenize("a b").size(), stream.tokenize("a b").size());
        CHECK(stream.usage().prompt_tokens > 0);
    }, 5, 0.0f);
    CHECK_EQ(tokens, 5);
    CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_LENGTH);
}

/* Every status, a panic, and bytes, through what the header turns them into. */
void testing_exports() {
    if (lib.testing_panic == nullptr) skip("the library is built without the feature `testing`");
    for (std::int32_t code = -60; code <= 3; code++) {
        bool thrown = false;
        try {
            eliza::detail::ErrorText().check(lib.testing_return_status(code));
        } catch (const Error & error) {
            thrown = true;
            CHECK_EQ(error.code(), code);
            CHECK(error.what()[0] != '\0');
        }
        CHECK_EQ(thrown, code < 0);
    }
    Stream stream = open_stream();
    for (FfiLlmHandle handle : {stream.handle(), FfiLlmHandle(nullptr)}) {
        eliza::detail::ErrorText text;
        const int status = lib.testing_panic(handle, "the kettle boiled over", text.out());
        CHECK_THROWS(ELIZA_ERR_FFI_FAULT, "the kettle boiled over", text.check(status));
    }
    CHECK_THROWS(ELIZA_ERR_FFI_FAULT, "the kettle boiled over", eliza::detail::fail_on(stream.handle()));
    stream.prefill(stream.tokenize(PROMPT));  // the stream lives on

    for (const std::string & text : {std::string(), std::string("plain"), std::string("\xc3\xa9\xf0\x9f\x98\x80"), std::string(100000, 'x')}) {
        const eliza::String back(lib.testing_echo_bytes(text.data(), text.size()));
        CHECK(back != nullptr && text == back.get());
    }
    CHECK(eliza::String(lib.testing_echo_bytes("\xff", 1)) == nullptr);
}

void ownership() {
    Stream first = open_stream();
    const FfiLlmHandle handle = first.handle();
    Stream second(std::move(first));
    CHECK(first.handle() == nullptr && second.handle() == handle);
    CHECK_THROWS(-1, "", first.prefill({1}));
    CHECK_THROWS(-1, "", first.usage());
    CHECK_THROWS(-1, "", first.usage_json());
    CHECK_THROWS(-1, "", first.generate(1));
    CHECK_THROWS(-1, "", first.score_trie());
    CHECK_THROWS(-1, "", first.tokenize("a"));
    first.cancel();

    Stream other = open_stream();
    const FfiLlmHandle closed = other.handle();
    other = std::move(second);
    CHECK(lib.llm_stream_status(closed) == -1 && other.handle() == handle);
    Stream & same = other;
    other = std::move(same);
    CHECK(other.handle() == handle);
    other.prefill({1, 2, 3});

    std::vector<Stream> many;
    std::vector<FfiLlmHandle> handles;
    for (int i = 0; i < 5; i++) {
        many.push_back(open_stream(64));
        handles.push_back(many.back().handle());
    }
    many.erase(many.begin() + 1);
    CHECK_EQ(lib.llm_stream_status(handles[1]), -1);
    for (Stream & stream : many) {
        stream.prefill({1});
        CHECK(!stream.generate(1, 0.0f).next()->tokens.empty());
    }
    many.clear();
    for (FfiLlmHandle gone : handles) CHECK_EQ(lib.llm_stream_status(gone), -1);
    CHECK_EQ(other.status(), ELIZA_OK);
}

/* What the C functions give, by every way of generating. */
void generating() {
    static struct result expected;
    Stream stream = open_stream();
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    greedy(stream.handle(), 40, &expected);
    const std::vector<Token> tokens(expected.tokens, expected.tokens + expected.n_tokens);
    CHECK_EQ(tokens.size(), 40);

    stream.prefill(prompt);
    std::vector<Token> found;
    std::string text;
    for (const eliza::Step & step : stream.generate(40, 0.0f, 1.0f)) {
        found.insert(found.end(), step.tokens.begin(), step.tokens.end());
        text += step.text;
    }
    CHECK(found == tokens && text == expected.text);
    CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_LENGTH);
    CHECK_EQ(stream.usage().completion_tokens, 40);

    stream.prefill(prompt);
    found.clear();
    text.clear();
    stream.generate([&](Token token, std::string_view piece) {
        if (token >= 0) found.push_back(token);
        text += piece;
    }, 40, 0.0f, 1.0f);
    CHECK(found == tokens && text.size() >= expected.text_len);

    stream.prefill(prompt);
    found.clear();
    text.clear();
    Generation polled = stream.generate(40, 0.0f, 1.0f);
    while (const auto step = polled.poll(std::chrono::milliseconds(1))) {
        found.insert(found.end(), step->tokens.begin(), step->tokens.end());
        text += step->text;
    }
    CHECK(found == tokens && text == expected.text);
    CHECK(!polled.next() && !polled.poll(std::chrono::hours(100000)));

    stream.start_prefill(prompt);
    while (stream.status() == ELIZA_STATUS_GENERATING) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(stream.status(), ELIZA_OK);
    CHECK(stream.generate(40, 0.0f, 1.0f).text() == expected.text);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "1000000", stream.start_prefill({1000000}));
    stream.prefill(prompt);
    Generation none = stream.generate(0);
    CHECK(none.begin() == none.end());
}

struct Unusual {
    int number;
};

void exceptions_from_tokens() {
    Stream stream = open_stream();
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    for (int at = 0; at < 5; at++) {
        stream.prefill(prompt);
        int seen = 0, number = 0;
        try {
            stream.generate([&](Token, std::string_view) {
                if (seen++ == at) throw Unusual{1000 + at};
            }, -1, 0.0f);
            fail(__FILE__, __LINE__, "nothing was thrown");
        } catch (const Unusual & unusual) {
            number = unusual.number;
        }
        CHECK(number == 1000 + at && seen == at + 1);
        CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_CANCELLED);
    }
    stream.prefill(prompt);
    try {
        stream.generate(eliza::OnToken(), 5);
        fail(__FILE__, __LINE__, "an empty function was called");
    } catch (const std::bad_function_call &) {
    }
    stream.prefill(prompt);
    CHECK(!stream.generate(5, 0.0f).text().empty());
}

void exceptions_from_loading() {
    eliza::OpenOptions options;
    options.model = model_path();
    options.progress = [](float) -> bool { throw Unusual{7}; };
    try {
        Stream stream(options);
        fail(__FILE__, __LINE__, "nothing was thrown");
    } catch (const Unusual & unusual) {
        CHECK_EQ(unusual.number, 7);
    }
    options.progress = [](float) { return false; };
    CHECK_THROWS(ELIZA_ERR_CANCELLED, "", Stream(options));
    std::vector<float> loaded;
    options.progress = [&](float part) {
        loaded.push_back(part);
        return true;
    };
    Stream stream(options);
    CHECK(!loaded.empty() && std::is_sorted(loaded.begin(), loaded.end()) && loaded.back() <= 1.0f);
}

void giving_up() {
    Stream stream = open_stream();
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    for (int i = 0; i < 5; i++) {
        stream.prefill(prompt);
        for (const eliza::Step & step : stream.generate(-1, 0.0f)) {
            CHECK(!step.tokens.empty());
            break;
        }
        // Not busy: it was waited for.
        stream.prefill(prompt);
        try {
            for (const eliza::Step & step : stream.generate(-1, 0.0f)) throw Unusual{static_cast<int>(step.tokens.size())};
        } catch (const Unusual &) {
        }
    }
    stream.prefill(prompt);
    Generation one = stream.generate(-1, 0.0f);
    Stream other = open_stream();
    other.prefill(prompt);
    one = other.generate(3, 0.0f);  // the first is given up
    stream.prefill(prompt);
    Generation two(std::move(one));
    CHECK(!one.next() && !two.text().empty());

    // Destroyed after its stream.
    std::optional<Stream> gone(open_stream());
    gone->prefill(prompt);
    Generation late = gone->generate(-1, 0.0f);
    gone.reset();
    CHECK_THROWS(-1, "", late.next());
    CHECK(!late.next());
}

void cancelling() {
    Stream stream = open_stream(1024);
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    for (int i = 0; i < 10; i++) {
        std::atomic<bool> started{false};
        stream.prefill(prompt);
        std::thread canceller([&] {
            while (!started) std::this_thread::yield();
            stream.cancel();
        });
        std::size_t tokens = 0;
        if (i % 2 == 0) {
            for (const eliza::Step & step : stream.generate(-1, 0.0f)) {
                started = true;
                tokens += step.tokens.size();
            }
        } else {
            stream.generate([&](Token, std::string_view) {
                started = true;
                tokens++;
            }, -1, 0.0f);
        }
        canceller.join();
        // On a busy machine the thread may come only after the context is full.
        const Finish finish = stream.finish();
        CHECK(finish == Finish::cancelled || finish == Finish::context);
        CHECK(tokens > 0 && tokens < 1024);
    }
}

void threads() {
    static struct result expected;
    Stream first = open_stream();
    greedy(first.handle(), 30, &expected);
    const std::vector<Token> prompt = first.tokenize(PROMPT);
    std::atomic<int> good{0};
    std::vector<std::thread> running;
    for (int i = 0; i < 8; i++) {
        running.emplace_back([&, i] {
            Stream stream = open_stream(64);
            for (int turn = 0; turn < 4; turn++) {
                stream.prefill(prompt, turn % 2);
                std::string text;
                if ((i + turn) % 2 == 0) text = stream.generate(30, 0.0f, 1.0f).text();
                else stream.generate([&](Token, std::string_view piece) { text += piece; }, 30, 0.0f, 1.0f);
                if (text.compare(0, expected.text_len, expected.text) == 0) good++;
                try {
                    stream.prefill({1000000 + i});
                } catch (const Error & error) {
                    if (std::strstr(error.what(), std::to_string(1000000 + i).c_str()) != nullptr) good++;
                }
            }
        });
    }
    // What is const, on one stream, from here and from a thread, while it generates.
    first.prefill(prompt);
    Generation long_one = first.generate(200, 0.0f);
    std::thread looking([&] {
        for (int i = 0; i < 200; i++) {
            if (first.usage().prompt_tokens == prompt.size() && first.tokenize(PROMPT) == prompt && !first.usage_json().empty()) good++;
        }
    });
    while (long_one.next()) {
    }
    looking.join();
    for (std::thread & thread : running) thread.join();
    CHECK_EQ(good.load(), 8 * 4 * 2 + 200);
}

void texts() {
    const Stream stream = open_stream();
    for (const std::string & text : {std::string("Hello"), std::string("two\nlines"), std::string("\xc3\xa9\xf0\x9f\x98\x80 \xe4\xb8\xad"),
                                     std::string("a\0b", 3), std::string(5000, 'q')}) {
        const std::vector<Token> tokens = stream.tokenize(text, false);
        int * raw = nullptr;
        std::size_t n = 0;
        CHECK_EQ(lib.llm_stream_tokenize(stream.handle(), text.data(), text.size(), 0, 0, &raw, &n, nullptr), ELIZA_OK);
        CHECK(tokens == std::vector<Token>(raw, raw + n));
        lib.free_tokens(raw);
        const std::string back = stream.detokenize(tokens);
        CHECK(back == text || back == " " + text);
    }
    CHECK(stream.tokenize("", false).empty() && stream.detokenize({}).empty());
    CHECK_EQ(stream.tokenize("a").size(), stream.tokenize("a", false).size() + 1);
}

/* Names that JSON has to escape, each with a path of its own; two begin alike. */
const char * const NAMES[] = {"\"quoted\" \\ back", "tab\tline\n\x01", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", "plain", "plainer"};
const char * const PAYLOAD =
    "{\"modelId\":\"\",\"descriptors\":[{\"path\":\"first \\u00e9\",\"leaves\":["
    "{\"name\":\"\\\"quoted\\\" \\\\ back\",\"tokens\":[10,11,12]},{\"name\":\"tab\\tline\\n\\u0001\",\"tokens\":[20,21]},"
    "{\"name\":\"\\u00e9\\u4e2d\\ud83d\\ude00\",\"tokens\":[30]},{\"name\":\"plain\",\"tokens\":[40,41]},"
    "{\"name\":\"plainer\",\"tokens\":[40,41,42]}]},"
    "{\"path\":\"second\",\"leaves\":[{\"name\":\"only\",\"tokens\":[50,51,52]}]}]}";

void tries() {
    Stream stream = open_stream();
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    eliza::SamplingOptions options = stream.sampling();
    options.on_span_end = eliza::SpanEnd::stop;
    stream.configure(options);
    stream.set_trie(PAYLOAD, TrieMode::score_leaves);
    stream.prefill(prompt);

    const eliza::Scores scores = stream.score_trie();
    CHECK(scores.path == "first \xc3\xa9");
    CHECK_EQ(scores.leaves.size(), 5);
    const eliza::String json(lib.score_token_trie(stream.handle(), nullptr));
    const char * at = json.get();
    double sum = 0;
    for (const eliza::LeafScore & leaf : scores.leaves) {
        CHECK(std::count(std::begin(NAMES), std::end(NAMES), leaf.name) == 1);
        at = std::strstr(at, "\"logprob\":");
        CHECK(at != nullptr && leaf.logprob == std::strtod(at += std::strlen("\"logprob\":"), nullptr));
        CHECK(std::abs(leaf.logprob_per_token - leaf.logprob / static_cast<double>(leaf.tokens)) < 1e-6 * std::abs(leaf.logprob));
        sum += std::exp(leaf.logprob);
    }
    CHECK(sum > 0 && sum <= 1.000001);
    CHECK(std::is_sorted(scores.leaves.begin(), scores.leaves.end(), [](const auto & a, const auto & b) { return a.logprob > b.logprob; }));

    const auto tokens_of_span = [&] {
        const std::vector<Token> tokens = tokens_left(stream.generate(-1, 0.0f));
        CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_SPAN);
        return tokens;
    };
    CHECK_EQ(tokens_of_span().size(), scores.leaves[0].tokens);
    stream.set_trie(PAYLOAD, TrieMode::greedy);
    stream.arm_trie("second");
    stream.prefill(prompt);
    CHECK((tokens_of_span() == std::vector<Token>{50, 51, 52}));
    stream.arm_next_trie();
    stream.prefill(prompt);
    CHECK(stream.score_trie().path == scores.path);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "third", stream.arm_trie("third"));

    // From names, as a host makes it; the leaves are what the tokenizer makes of them.
    const eliza::TriePayload built = stream.build_trie("names", {"yes", "no", "\"\xc3\xa9\""}, PROMPT, ".");
    CHECK(built.warnings.empty());
    stream.set_trie(built.json, TrieMode::score_leaves);
    stream.prefill(prompt);
    const eliza::Scores named = stream.score_trie();
    CHECK(named.path == "names" && named.leaves.size() == 3);
    CHECK(stream.generate(-1, 0.0f).text() == named.leaves[0].name + ".");
    CHECK(stream.build_trie("names", {"yes", "yes"}).warnings.find("yes") != std::string::npos);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", stream.build_trie("names", {}));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "`names`", stream.build_trie("names", {std::string("a\0b", 3)}));

    stream.clear_trie();
    stream.prefill(prompt);
    CHECK_EQ(stream.generate(7, 0.0f).text().empty(), false);
    CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_LENGTH);
}

void json() {
    using eliza::detail::Json;
    CHECK(Json("\"\\u0041\\u00e9\\u4E2D\\ud83d\\ude00\\\"\\\\\\/\\b\\f\\n\\r\\t\"").string() ==
          "A\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\"\\/\b\f\n\r\t");
    CHECK(Json("-1.5e-3").number() == -1.5e-3);
    CHECK(Json(" null").number() == -std::numeric_limits<double>::infinity());
    // Keys of a later version are passed over.
    const eliza::Scores scores = eliza::detail::read_scores(
        " { \"new\" : {\"a\":[1,{},[],\"]\"],\"b\":null}, \"leaves\" :\n[ {\"x\":true,\"name\":\"n\",\"tokens\":3,\"logprob\":null,"
        "\"logprob_per_token\":null,\"y\":\"}\"} ] , \"path\":\"p\" } ");
    CHECK(scores.path == "p" && scores.leaves.size() == 1 && scores.leaves[0].name == "n" && scores.leaves[0].tokens == 3);
    CHECK(std::isinf(scores.leaves[0].logprob) && scores.leaves[0].logprob < 0);
    CHECK(eliza::detail::read_scores("{}").leaves.empty());
    for (const char * bad : {"", "{", "{\"path\"", "{\"path\":", "{\"path\":\"", "{\"path\":\"\\", "{\"path\":\"\\u12", "{\"leaves\":[{\"tokens\":x}]}",
                             "{\"leaves\":[", "[", "{\"a\":}"}) {
        CHECK_THROWS(ELIZA_ERR_FFI_FAULT, "JSON", eliza::detail::read_scores(bad));
    }
}

void options() {
    Stream stream = open_stream();
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    eliza::SamplingOptions options = stream.sampling();
    options.seed = 5;
    options.top_k = 7;
    options.min_p = 0.125f;
    options.repeat_penalty = 1.5f;
    options.repeat_last_n = 33;
    options.presence_penalty = 0.25f;
    options.frequency_penalty = 0.5f;
    options.on_span_end = eliza::SpanEnd::stop;
    options.strict_trie = true;
    options.n_candidates = 4;
    options.on_context_full = eliza::ContextFull::shift;
    options.n_keep = 9;
    options.special_text = true;
    options.generator = eliza::Generator::mt19937;
    options.samplers = "top_k;typ_p;xtc;temperature";
    options.typical_p = 0.5f;
    options.dry_multiplier = 0.75f;
    options.dry_breakers = {"\n", "."};
    options.mirostat = 2;
    options.adaptive_target = 0.25f;
    options.min_keep = 3;
    options.reasoning_budget = 12;
    options.reasoning_start = "a";
    options.reasoning_end = "b";
    stream.configure(options);
    const eliza::SamplingOptions now = stream.sampling();
    CHECK(now.seed == 5 && now.top_k == 7 && now.min_p == 0.125f && now.repeat_penalty == 1.5f && now.repeat_last_n == 33);
    CHECK(now.presence_penalty == 0.25f && now.frequency_penalty == 0.5f && now.on_span_end == eliza::SpanEnd::stop);
    CHECK(now.strict_trie && now.ignore_eos && now.n_candidates == 4);
    CHECK(now.on_context_full == eliza::ContextFull::shift && now.n_keep == 9 && now.special_text);
    CHECK(now.generator == eliza::Generator::mt19937 && now.typical_p == 0.5f && now.dry_multiplier == 0.75f);
    CHECK(now.mirostat == 2 && now.adaptive_target == 0.25f && now.min_keep == 3 && now.reasoning_budget == 12);

    // A bias that leaves one token, and a stop string that is its text.
    options = eliza::SamplingOptions();
    options.n_candidates = 4;
    options.logit_bias = {{70, 1000.0f}, {71, 900.0f}};
    stream.configure(options);
    stream.prefill(prompt);
    std::vector<Token> tokens;
    stream.generate([&](Token token, std::string_view) { tokens.push_back(token); }, 3, 0.7f, 1.0f);
    tokens.resize(3);
    CHECK((tokens == std::vector<Token>{70, 70, 70}));
    const eliza::Sampled drawn = stream.sampled();
    CHECK(drawn.token == 70 && drawn.probability > 0.999f && std::abs(drawn.logprob) < 0.001f);
    CHECK_EQ(drawn.candidates.size(), 4);
    CHECK(drawn.candidates[0].token == 70 && drawn.candidates[1].token == 71);
    options.stop = {"never there", stream.detokenize({70, 70})};
    stream.configure(options);
    stream.prefill(prompt);
    CHECK(stream.generate(10, 0.0f).text().empty());
    CHECK_EQ(static_cast<int>(stream.finish()), ELIZA_FINISH_STOP);

    // A seed gives the same stream, a chain replaces the options.
    options = eliza::SamplingOptions();
    options.seed = 11;
    options.ignore_eos = true;
    stream.configure(options);
    std::string text[2];
    for (std::string & one : text) {
        stream.prefill(prompt);
        one = stream.generate(20, 1.0f).text();
    }
    CHECK(text[0] == text[1]);
    stream.set_chain("greedy");
    stream.prefill(prompt);
    text[0] = stream.generate(20).text();
    stream.set_chain("");
    stream.prefill(prompt);
    CHECK(stream.generate(20, 0.0f).text() == text[0]);
}

/* Another stream goes on where the first stopped. */
void saving() {
    const std::string path = "wrapper_saved." + std::to_string(getpid());
    Stream first = open_stream();
    first.prefill(first.tokenize(PROMPT));
    const std::vector<Token> begin = tokens_left(first.generate(5, 0.0f));
    first.save_slot(path);
    Stream second = open_stream();
    CHECK_EQ(second.restore_slot(path, 3), first.tokenize(PROMPT).size() + 5);
    const std::vector<Token> rest = tokens_left(second.generate(20, 0.0f));
    CHECK(begin.size() == 5 && rest.size() == 20);
    first.prefill(first.tokenize(PROMPT));
    const std::vector<Token> whole = tokens_left(first.generate(25, 0.0f));
    CHECK(std::equal(begin.begin(), begin.end(), whole.begin()) && std::equal(rest.begin(), rest.end(), whole.begin() + 5));
    CHECK_EQ(first.restore_slot(path), second.tokenize(PROMPT).size() + 5);
    CHECK(tokens_left(first.generate(20, 0.0f)) == rest);
    CHECK_EQ(unlink(path.c_str()), 0);
    CHECK_THROWS(ELIZA_ERR_IO, path.c_str(), second.restore_slot(path));
    CHECK_THROWS(ELIZA_ERR_SAVED_SLOT, model_path(), second.restore_slot(model_path()));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", second.save_slot(path, 9));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "`path`", second.save_slot(std::string("a\0b", 3)));
}

/* Streams of slots of one stream, all at once. */
void slots() {
    eliza::OpenOptions how;
    how.model = model_path();
    how.context = 512;
    how.slots = 3;
    CHECK_THROWS(ELIZA_ERR_NOT_IMPLEMENTED, "take turns", eliza::Stream(how).open_slot());
    how.concurrent_slots = true;
    eliza::Stream stream(how);
    eliza::Stream one = stream.open_slot(1);
    std::vector<eliza::Stream> all;
    all.push_back(stream.open_slot());
    all.push_back(std::move(one));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "the last", stream.open_slot());
    all.push_back(std::move(stream));
    std::vector<eliza::Generation> running;
    for (eliza::Stream & each : all) {
        each.prefill(each.tokenize(PROMPT));
        running.push_back(each.generate(20, 0.0f));
    }
    std::string text = running[0].text();
    CHECK(!text.empty() && running[1].text() == text && running[2].text() == text);
    all.pop_back();
    all[0].prefill(all[0].tokenize(PROMPT));
    CHECK(all[0].generate(20, 0.0f).text() == text);
}

void samplers() {
    CHECK_THROWS(ELIZA_ERR_TRIE, "", eliza::Sampler("{", TrieMode::greedy));
    CHECK_THROWS(ELIZA_ERR_NOT_IMPLEMENTED, "mode 2", eliza::Sampler(PAYLOAD, TrieMode::score_leaves));
    eliza::Sampler sampler(PAYLOAD, TrieMode::sampled);
    CHECK(std::strcmp(sampler.name(), "token-trie") == 0);
    const auto legal = [](eliza::Sampler & of) {
        llama_token_data data[60];
        llama_token_data_array list = {data, 60, -1, false};
        for (int i = 0; i < 60; i++) data[i] = {i, 0.5f, 0.0f};
        of.apply(list);
        std::vector<Token> ids;
        for (std::size_t i = 0; i < list.size; i++) {
            if (list.data[i].logit == 0.5f) ids.push_back(list.data[i].id);
        }
        return ids;
    };
    CHECK((legal(sampler) == std::vector<Token>{10, 20, 30, 40}));
    sampler.accept(10);
    eliza::Sampler copy = sampler.clone();
    CHECK((legal(sampler) == std::vector<Token>{11} && legal(copy) == std::vector<Token>{11}));
    sampler.reset();
    CHECK((legal(sampler).size() == 4 && legal(copy) == std::vector<Token>{11}));
    sampler.arm("second");
    CHECK((legal(sampler) == std::vector<Token>{50}));
    sampler.arm_next();
    CHECK_EQ(legal(sampler).size(), 4);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "third", sampler.arm("third"));

    eliza::Sampler moved(std::move(sampler));
    CHECK(sampler.get() == nullptr && sampler.name() == nullptr);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", sampler.reset());
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "", sampler.clone());
    moved = std::move(copy);
    CHECK((legal(moved) == std::vector<Token>{11}));
    // Handed over: somebody else frees it, by what it was made to be freed with.
    int freed = 0;
    const auto count = [&](llama_sampler * owned) {
        freed++;
        eliza_inference_sampler_free(owned);
    };
    llama_sampler * raw = eliza::Sampler(PAYLOAD, TrieMode::greedy, nullptr, count).release();
    CHECK(freed == 0 && raw != nullptr);
    CHECK_EQ(lib.sampler_free(raw), ELIZA_OK);
    {
        eliza::Sampler one(PAYLOAD, TrieMode::greedy, nullptr, count), two = one.clone();
    }
    CHECK_EQ(freed, 2);
}

/* What C++ is told is what C is told, and failures are thrown with their codes. */
void asking() {
    const auto told = [](char * text) {
        const eliza::String owned(text);
        CHECK(owned != nullptr);
        return std::string(owned.get());
    };
    const std::string model = model_path();
    eliza::OpenOptions how;
    how.model = model;
    how.context = 256;
    how.threads = 1;
    how.kv_type = "f32";
    how.kv_type_v = "q8_0";
    how.n_batch = 32;
    CHECK(eliza::devices().find("\"CPU") != std::string::npos);
    {
        eliza::Stream stream(how);
        const eliza::EmbeddingOptions mean = {eliza::Pooling::mean, 4, true};
        const std::vector<std::string> texts = {"Once upon a time", "a little dog"};
        const eliza::Embeddings rows = stream.embed(texts, mean);
        CHECK_EQ(rows.size(), 2);
        CHECK_EQ(rows.width, 4);
        const eliza::Embeddings same = stream.embed({stream.tokenize(texts[0]), stream.tokenize(texts[1])}, mean);
        CHECK(rows.numbers == same.numbers);
        CHECK(rows[1] == rows.numbers.data() + 4);
        CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "classifier", stream.rank("Who?", texts));
    }
    const std::string plan = eliza::plan(how);
    CHECK(plan.find("\"n_batch\":32") != std::string::npos && plan.find("\"kv_type_v\":\"q8_0\"") != std::string::npos);
    CHECK(eliza::file_metadata(model) == told(lib.file_metadata_json(model.c_str(), nullptr, nullptr)));
    CHECK(eliza::file_metadata(model, "general.architecture") == "\"llama\"");
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "no.such.key", eliza::file_metadata(model, "no.such.key"));
    CHECK_THROWS(ELIZA_ERR_IO, "nonexistent", eliza::file_metadata("/nonexistent/model.gguf"));
    eliza::OpenOptions wrong = how;
    wrong.n_batch = 513;
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "n_batch is 513", eliza::plan(wrong));
    wrong.tensor_split = "1,x";
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "`x`", eliza::plan(wrong));

    Stream stream(how);
    CHECK(stream.describe() == told(lib.llm_stream_model_json(stream.handle(), nullptr)));
    CHECK(stream.describe().find("\"n_batch\":32,\"kv_type\":\"f32\",\"kv_type_v\":\"q8_0\"") != std::string::npos);
    CHECK(stream.metadata() == eliza::file_metadata(model) && stream.metadata("general.architecture") == "\"llama\"");
    CHECK(stream.token(5) == told(lib.llm_stream_token_json(stream.handle(), 5, nullptr)));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "messages", stream.chat_prompt("{}"));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "no answer", stream.chat_parts("", "a", true));
    const char * const hello = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    CHECK(stream.chat_parts(hello, "Yes", true) == "[{\"type\":\"answer\",\"text\":\"Yes\"}]");
    CHECK(stream.is_eog(5) == (lib.llm_stream_is_eog(stream.handle(), 5) == 1));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "token -1", stream.token(-1));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "token -1", stream.is_eog(-1));
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "no.such.key", stream.metadata("no.such.key"));

    CHECK_THROWS(ELIZA_ERR_BUSY, "prefill", stream.logits());
    const std::vector<Token> prompt = stream.tokenize(PROMPT);
    stream.prefill(prompt);
    const std::vector<float> all = stream.logits(static_cast<std::int32_t>(prompt.size())), last = stream.logits();
    CHECK_EQ(all.size(), prompt.size() * last.size());
    CHECK(std::equal(last.begin(), last.end(), all.end() - static_cast<std::ptrdiff_t>(last.size())));
    const auto best = std::max_element(last.begin(), last.end()) - last.begin();
    std::vector<Token> tokens = tokens_left(stream.generate(1, 0.0f));
    CHECK(stream.is_eog(static_cast<Token>(best)) ? tokens.empty() : tokens == std::vector<Token>{static_cast<Token>(best)});
    CHECK_EQ(stream.usage().sampled_tokens, 1);
    CHECK_THROWS(ELIZA_ERR_INVALID_ARG, "n_last is 0", stream.logits(0));

    how.vocab_only = true;
    Stream vocabulary(how);
    CHECK(vocabulary.tokenize(PROMPT) == prompt && vocabulary.token(5) == stream.token(5));
    CHECK(vocabulary.describe().find("\"vocab_only\":true") != std::string::npos);
    CHECK_THROWS(ELIZA_ERR_NOT_IMPLEMENTED, "only the vocabulary", vocabulary.prefill(prompt));
    CHECK_THROWS(ELIZA_ERR_NOT_IMPLEMENTED, "only the vocabulary", vocabulary.logits());
}

}  // namespace

const struct test_case wrapper_cases[] = {
    {"wrapper_errors", errors}, {"wrapper_busy", busy}, {"wrapper_testing_exports", testing_exports},
    {"wrapper_ownership", ownership}, {"wrapper_generating", generating},
    {"wrapper_exceptions_from_tokens", exceptions_from_tokens}, {"wrapper_exceptions_from_loading", exceptions_from_loading},
    {"wrapper_giving_up", giving_up}, {"wrapper_cancelling", cancelling}, {"wrapper_threads", threads},
    {"wrapper_texts", texts}, {"wrapper_tries", tries}, {"wrapper_json", json}, {"wrapper_options", options},
    {"wrapper_saving", saving}, {"wrapper_slots", slots}, {"wrapper_samplers", samplers}, {"wrapper_asking", asking}, {nullptr, nullptr},
};
