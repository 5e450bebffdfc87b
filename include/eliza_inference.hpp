/*
 * eliza_inference.hpp: eliza_inference.h for C++17, as types that free what they own and throw what fails.
 *
 * Interface eliza-stream 1. Licence: MIT OR Apache-2.0. Needs nothing but the C header, the library and the standard library.
 *
 *     #include "eliza_inference.hpp"
 *     #include <iostream>
 *
 *     int main() {
 *         try {
 *             eliza::Stream stream({"model.gguf"});
 *             stream.prefill(stream.tokenize("Once upon a time"));
 *             for (const eliza::Step & step : stream.generate(200, 0.8f, 0.95f)) std::cout << step.text << std::flush;
 *             return 0;
 *         } catch (const eliza::Error & error) {
 *             std::cerr << error.what() << " (" << error.code() << ")\n";
 *             return 1;
 *         }
 *     }
 *
 * What a call does in detail, and every code it can fail with, is documented in eliza_inference.h at the function of its name. Here
 * is what C++ adds.
 *
 * Failure.    Every call that can fail throws `eliza::Error` with the code (`ELIZA_ERR_*`) and the text, and loses nothing that
 *             was done before. In a program without exceptions (`-fno-exceptions`) the text goes to stderr and the program
 *             is aborted: such a program uses the C functions, through `handle()`, where it wants to survive.
 * Ownership.  Everything is owned by an object and freed by its destructor; objects move and are not copied. What was moved
 *             from holds no handle, and may be assigned to and destroyed. All arguments are copied before a call returns.
 * Threads.    `const` methods may be called by any thread at any time, also while another thread is in a call on the same
 *             object, and inside its callback. All others by one thread at a time; while the stream is at work they fail
 *             as busy. Different objects know nothing of each other. Moving and destroying is as with any object:
 *             only when no other thread uses it.
 * Callbacks.  Run on a thread of the library while the call that they were given to blocks. An exception that leaves one
 *             ends the generation or the load, and comes out of that call unchanged.
 * Strings.    UTF-8. A text with a NUL character inside is refused where C takes terminated strings.
 */

#ifndef ELIZA_INFERENCE_HPP
#define ELIZA_INFERENCE_HPP

#include "eliza_inference.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <locale>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// min and max are in brackets below, because windows.h makes macros of them.

namespace eliza {

/// A token id.
using Token = std::int32_t;

/// What a call failed with.
class Error : public std::runtime_error {
public:
    Error(std::int32_t code, const std::string & text) : std::runtime_error(text), code_(code) {}

    /// `ELIZA_ERR_*`.
    std::int32_t code() const noexcept { return code_; }

private:
    std::int32_t code_;
};

/// Frees a string of the library.
struct FreeString {
    void operator()(char * text) const noexcept { eliza_inference_free_string(text); }
};

/// A string that a function of the C interface returned, for code that calls it through `handle()`.
using String = std::unique_ptr<char, FreeString>;

/// How a token trie chooses; see `Stream::set_trie`.
enum class TrieMode : int {
    greedy = ELIZA_TRIE_GREEDY,              ///< the likeliest legal token
    sampled = ELIZA_TRIE_SAMPLED,            ///< temperature and truncations over the legal tokens, then a draw
    score_leaves = ELIZA_TRIE_SCORE_LEAVES,  ///< every leaf is scored as a whole, and the best one is taken
};

/// What the end of a constrained span does.
enum class SpanEnd : std::uint32_t {
    go_on = ELIZA_SPAN_CONTINUE,  ///< generation goes on without the constraint
    stop = ELIZA_SPAN_STOP,       ///< generation ends, with `Finish::span`
};

/// What a full context does.
enum class ContextFull : std::uint32_t {
    stop = ELIZA_CONTEXT_STOP,    ///< generation ends, with `Finish::context`
    shift = ELIZA_CONTEXT_SHIFT,  ///< half of the tokens after the first `n_keep` are removed, and generation goes on
};

/// Why a generation ended.
enum class Finish : std::int32_t {
    none = ELIZA_FINISH_NONE,            ///< there was none, or it still runs
    stop = ELIZA_FINISH_STOP,            ///< the model ended its answer, or a stop string was met
    length = ELIZA_FINISH_LENGTH,        ///< as many tokens as were asked for
    cancelled = ELIZA_FINISH_CANCELLED,  ///< by `Stream::cancel`, or given up
    error = ELIZA_FINISH_ERROR,          ///< it failed
    context = ELIZA_FINISH_CONTEXT,      ///< the context is full
    span = ELIZA_FINISH_SPAN,            ///< a constrained span ended, with `SpanEnd::stop`
};

/// How to open a model; only `model` has to be given.
struct OpenOptions {
    std::string model = {};            ///< the GGUF file, or a server: "vllm:https://host:8000/v1#name"
    std::int32_t context = 0;          ///< in tokens, shared by the slots; 0: min(4096, what the model was trained with)
    std::int32_t threads = 0;          ///< 0: `eliza_inference_default_thread_count`
    std::int32_t gpu_layers = 0;       ///< counted from the end; 0: none, -1: all
    std::string device = {};           ///< name of the device, or of several GPUs: "A;B"; empty: the best
    std::string tensor_split = {};     ///< the parts of several GPUs: "3,1"; empty: by their free memory
    /// Rules "PATTERN=DEVICE", separated by semicolons, for single tensors: "exps=cpu" keeps experts on the CPU.
    std::string tensor_devices = {};
    std::string kv_type = {};          ///< "f16", "f32" or "q8_0"; empty: "f16"
    std::string kv_type_v = {};        ///< of the cached values, where not `kv_type`
    std::uint32_t slots = 0;           ///< conversations that share the context, 1 to 16; 0: 16
    std::uint32_t n_batch = 0;         ///< the most tokens of a prompt that one pass evaluates, 1 to 512; 0: 512
    std::uint32_t snapshots = 0;       ///< earlier states and windows that are kept, 1 to 256; 0: a share of the cache
    std::uint32_t parallel = 0;        ///< handles with the same options that share an engine, 1 to 16; 0: 1
    bool concurrent_slots = false;     ///< slots can have streams of their own (`Stream::open_slot`), which share the context
    std::uint32_t max_slowdown_percent = 0;  ///< of the time for a token while others' prompts are read; 0: 250
    std::string draft = {};            ///< the GGUF file of a draft model, which may be the model's own; empty: none
    std::string store_directory = {};  ///< the folder of `Stream::persist`; empty: none
    std::uint64_t store_bytes = 0;     ///< the most bytes that its conversations take; 0: no limit
    std::string vocab = {};            ///< for a server: the GGUF file with its model's vocabulary; empty: tokens are bytes
    std::string api_key = {};          ///< for a server; empty: the environment's ELIZA_REMOTE_KEY
    std::string certificates = {};     ///< for a server: a PEM file of what is trusted; empty: the platform's
    std::uint32_t server_timeout_ms = 0;      ///< how long it may be silent; 0: 60000
    std::vector<std::string> fallback = {};   ///< models in its place where it cannot be used, in their order
    bool vocab_only = false;           ///< opens the vocabulary alone: text, tokens and questions work, nothing else
    std::function<bool(float)> progress = {};  ///< told the fraction loaded, on the opening thread; false cancels
};

/// Where random numbers come from.
enum class Generator : std::uint32_t {
    counter = ELIZA_GENERATOR_COUNTER,
    mt19937 = ELIZA_GENERATOR_MT19937,  ///< llama.cpp's, with its tokens
};

/// How generations sample. Take what is in force from `Stream::sampling`, change what is wanted, and give it to
/// `Stream::configure`.
struct SamplingOptions {
    std::uint32_t seed = ELIZA_SEED_RANDOM;  ///< of the draws; `ELIZA_SEED_RANDOM`: a new one for each generation
    std::int32_t top_k = 0;                  ///< only the so many likeliest tokens; 0: all
    float min_p = 0;                         ///< only tokens so likely, relative to the likeliest; 0: all
    float repeat_penalty = 1;                ///< divides the logits of repeated tokens; 1: off
    std::int32_t repeat_last_n = 0;          ///< how many tokens the penalties look back on; 0: none
    float presence_penalty = 0;              ///< subtracted from the logit of every token seen
    float frequency_penalty = 0;             ///< subtracted from it for each time it was seen
    std::vector<std::string> stop = {};      ///< generation ends before the first of these that appears
    std::vector<std::pair<Token, float>> logit_bias = {};  ///< tokens, and by how much their logits are shifted
    SpanEnd on_span_end = SpanEnd::go_on;    ///< what the end of a constrained span does
    bool strict_trie = false;                ///< refuses a token trie that only deserves a warning
    bool ignore_eos = false;                 ///< no end of generation where no token trie decides
    std::uint32_t n_candidates = 0;          ///< how many candidates `Stream::sampled` reports
    ContextFull on_context_full = ContextFull::stop;  ///< what a full context does
    std::uint32_t n_keep = 0;                ///< tokens at the beginning that a shift keeps; else 0
    bool special_text = false;               ///< spells control tokens in the text, for `Stream::chat_parts`
    bool no_guessing = false;                ///< never evaluates tokens that the text suggests before they are sampled
    Generator generator = Generator::counter;  ///< where random numbers come from
    std::string samplers = {};               ///< names and order; empty: those in force
    float top_n_sigma = 0;                   ///< only logits so many deviations below the greatest; 0: all
    float typical_p = 1;                     ///< only tokens of the most typical surprise with this probability; 1: all
    float xtc_probability = 0;               ///< how often the likeliest tokens are removed but one; 0: never
    float xtc_threshold = 0.1f;              ///< the probability from which on XTC removes tokens
    float dynatemp_range = 0;                ///< how far the temperature moves with the entropy; 0: not
    float dynatemp_exponent = 1;             ///< the power to which the normalised entropy is raised
    float dry_multiplier = 0;                ///< subtracted from what prolongs a repetition; 0: off
    float dry_base = 1.75f;                  ///< the factor for each token that the repetition is longer
    std::int32_t dry_allowed_length = 2;     ///< the length in tokens from which on a repetition counts
    std::int32_t dry_last_n = 64;            ///< the window of DRY in tokens
    std::vector<std::string> dry_breakers = {};  ///< where a repetition ends; empty: those in force, "none": nowhere
    std::uint32_t mirostat = 0;              ///< version 1 or 2 in place of the samplers but the temperature; 0: none
    float mirostat_tau = 5;                  ///< the surprise of a token that it aims at, in bits
    float mirostat_eta = 0.1f;               ///< how far it moves with every token
    float adaptive_target = -1;              ///< draws near this probability; 0 or below: off
    float adaptive_decay = 0.9f;             ///< how much of its mean that keeps with every token
    std::uint32_t min_keep = 0;              ///< tokens that top-p, min-p, typical-p and XTC keep at least
    std::uint32_t reasoning_budget = 0;      ///< tokens that the model may think in each block, with the two tags
    std::string reasoning_start = {};        ///< with which thinking begins, such as "<think>"
    std::string reasoning_end = {};          ///< with which it ends, such as "</think>"; empty: no limit
};

/// How the rows of a text's tokens become one.
enum class Pooling : std::int32_t {
    as_the_file_says = ELIZA_POOLING_DEFAULT,
    none = ELIZA_POOLING_NONE,  ///< the row of every token
    mean = ELIZA_POOLING_MEAN,
    cls = ELIZA_POOLING_CLS,    ///< the first token's
    last = ELIZA_POOLING_LAST,  ///< the last token's
    rank = ELIZA_POOLING_RANK,  ///< the scores of the model's classifier
};

/// How `Stream::embed` makes rows of texts.
struct EmbeddingOptions {
    Pooling pooling = Pooling::as_the_file_says;  ///< how the rows of a text's tokens become one
    std::uint32_t dimensions = 0;                 ///< a row's first numbers that are kept (Matryoshka); 0: all
    bool normalize = true;                        ///< divides each row by its length
};

/// Rows of texts, one after the other.
struct Embeddings {
    std::size_t width = 0;            ///< numbers in a row
    std::vector<float> numbers = {};  ///< of all rows

    /// How many rows there are.
    std::size_t size() const noexcept { return width == 0 ? 0 : numbers.size() / width; }
    /// Where a row begins.
    const float * operator[](std::size_t row) const noexcept { return numbers.data() + row * width; }
};

/// Counters and times since the last prefill began; see `eliza_llm_usage_t`.
using Usage = eliza_llm_usage_t;

/// One token that could have been drawn; see `eliza_llm_candidate_t`.
using Candidate = eliza_llm_candidate_t;

/// How a token was sampled.
struct Sampled {
    Token token = -1;                        ///< the one that was drawn
    float logprob = 0;                       ///< natural logarithm of its probability in the draw
    float probability = 0;                   ///< its probability in the draw
    std::vector<Candidate> candidates = {};  ///< the likeliest first
};

/// The score of one leaf of a token trie.
struct LeafScore {
    std::string name = {};         ///< the leaf's
    std::size_t tokens = 0;        ///< how many it has
    double logprob = 0;            ///< natural logarithm of the probability that exactly this leaf follows; minus infinity
                                   ///< where it cannot
    double logprob_per_token = 0;  ///< the same by token
};

/// The scores of all leaves of one descriptor.
struct Scores {
    std::string path = {};               ///< the descriptor's
    std::vector<LeafScore> leaves = {};  ///< the most probable first
};

/// What `Stream::build_trie` makes.
struct TriePayload {
    std::string json = {};      ///< for `Stream::set_trie`
    std::string warnings = {};  ///< what a user should know of the names, a line each; usually empty
};

/// What one step of a generation brought.
struct Step {
    std::vector<Token> tokens = {};  ///< none where text is handed out by itself, or where nothing came in time
    std::string text = {};           ///< whole characters
};

/// Receives a token and the text that it completes; with token -1 text that was held back until the end.
using OnToken = std::function<void(Token token, std::string_view text)>;

/// For `temperature` and `top_p`: what the chain, the options or the model say.
constexpr float as_configured = std::numeric_limits<float>::quiet_NaN();

namespace detail {

[[noreturn]] inline void fail(std::int32_t code, const char * text) {
    if (text == nullptr) text = "The library gave no reason";
#if defined(__cpp_exceptions)
    throw Error(code, text);
#else
    std::fprintf(stderr, "eliza: %s (%d)\n", text, static_cast<int>(code));
    std::abort();
#endif
}

/// Runs code of the host where nothing may be thrown; what it throws is kept.
template <class Body>
void shielded(std::exception_ptr & thrown, Body body) noexcept {
#if defined(__cpp_exceptions)
    try {
        body();
    } catch (...) {
        thrown = std::current_exception();
    }
#else
    static_cast<void>(thrown);
    body();
#endif
}

/// Where a function of the C interface puts the text of its error.
class ErrorText {
public:
    ErrorText() = default;
    ErrorText(const ErrorText &) = delete;
    ErrorText & operator=(const ErrorText &) = delete;
    ~ErrorText() { eliza_inference_free_string(text_); }

    char ** out() noexcept { return &text_; }
    const char * get() const noexcept { return text_; }

    /// Throws where `status` is a failure.
    void check(std::int32_t status) const {
        if (status < 0) fail(status, text_);
    }

private:
    char * text_ = nullptr;
};

/// Throws what a call that only says -1, or NULL, failed with.
[[noreturn]] inline void fail_on(FfiLlmHandle handle) {
    std::int32_t code = eliza_inference_llm_stream_status(handle);
    if (code == ELIZA_STATUS_GENERATING) code = ELIZA_ERR_BUSY;
    String text(eliza_inference_llm_stream_take_error(handle));
    if (text == nullptr) text.reset(eliza_inference_take_last_error());
    fail(code < 0 ? code : ELIZA_ERR_NOT_IMPLEMENTED, text.get());
}

/// Throws what a call that belongs to no stream failed with, which its `text` tells apart from failures of other threads
/// where it has one.
[[noreturn]] inline void fail_of_process(const char * text = nullptr) {
    std::int32_t code = ELIZA_OK;
    const String last(eliza_inference_take_last_failure(&code));
    const bool ours = last != nullptr && (text == nullptr || std::string_view(text) == last.get());
    fail(ours ? code : ELIZA_ERR_NOT_IMPLEMENTED, text != nullptr ? text : last.get());
}

/// The text of a call that belongs to no stream and gives NULL where it fails.
inline std::string text_of_process(char * text, const ErrorText & error) {
    const String owned(text);
    if (owned == nullptr) fail_of_process(error.get());
    return owned.get();
}

/// A text as C takes it.
inline const char * c_text(const std::string & text, const char * name) {
    if (text.find('\0') != std::string::npos) {
        fail(ELIZA_ERR_INVALID_ARG, (std::string("There is a NUL character in `") + name + "`").c_str());
    }
    return text.c_str();
}

inline const char * c_text_or_null(const std::string & text, const char * name) {
    return text.empty() ? nullptr : c_text(text, name);
}

/// Reads the JSON that the library writes, from front to back.
class Json {
public:
    explicit Json(const char * text) : at_(text) {}

    /// `field(key)` is called before each value and has to read it.
    template <class Field>
    void object(Field field) {
        list('{', '}', [&] {
            const std::string key = string();
            expect(':');
            field(key);
        });
    }

    /// `element()` is called before each value and has to read it.
    template <class Element>
    void array(Element element) {
        list('[', ']', element);
    }

    std::string string() {
        std::string text;
        expect('"');
        while (*at_ != '"') {
            if (*at_ == '\0') malformed();
            if (*at_ != '\\') {
                text += *at_++;
                continue;
            }
            const char escaped = *++at_;
            if (escaped == '\0') malformed();
            ++at_;
            if (escaped == 'u') {
                append(text, character());
            } else {
                constexpr std::string_view names = "bfnrt", meant = "\b\f\n\r\t";
                const std::size_t which = names.find(escaped);
                text += which == std::string_view::npos ? escaped : meant[which];
            }
        }
        ++at_;
        return text;
    }

    /// A number; minus infinity for null.
    double number() {
        const std::string text = word();
        if (text == "null") return -std::numeric_limits<double>::infinity();
        // Unlike strtod it does not ask how the user's country writes numbers.
        std::istringstream stream(text);
        stream.imbue(std::locale::classic());
        double value = 0;
        if (!(stream >> value)) malformed();
        return value;
    }

    /// A value that nobody asked for.
    void skip() {
        if (next() == '{') object([&](const std::string &) { skip(); });
        else if (next() == '[') array([&] { skip(); });
        else if (next() == '"') string();
        else word();
    }

private:
    [[noreturn]] static void malformed() { fail(ELIZA_ERR_FFI_FAULT, "The library's JSON is malformed"); }

    char next() {
        while (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r') ++at_;
        return *at_;
    }

    bool take(char wanted) {
        if (next() != wanted) return false;
        ++at_;
        return true;
    }

    void expect(char wanted) {
        if (!take(wanted)) malformed();
    }

    template <class Element>
    void list(char open, char close, Element element) {
        expect(open);
        if (take(close)) return;
        do element();
        while (take(','));
        expect(close);
    }

    std::string word() {
        constexpr std::string_view ends = ",:]} \t\r\n";
        std::string text;
        next();
        while (*at_ != '\0' && ends.find(*at_) == std::string_view::npos) text += *at_++;
        if (text.empty()) malformed();
        return text;
    }

    /// The four hexadecimal digits of a `\u`, and the second half of a pair.
    std::uint32_t character() {
        const std::uint32_t first = hexadecimal();
        if (first < 0xd800 || first > 0xdbff || at_[0] != '\\' || at_[1] != 'u') return first;
        at_ += 2;
        return 0x10000 + ((first - 0xd800) << 10) + (hexadecimal() - 0xdc00);
    }

    std::uint32_t hexadecimal() {
        constexpr std::string_view digits = "0123456789abcdef";
        std::uint32_t value = 0;
        for (int i = 0; i < 4; i++) {
            const char digit = *at_ >= 'A' && *at_ <= 'F' ? static_cast<char>(*at_ - 'A' + 'a') : *at_;
            const std::size_t worth = digits.find(digit);
            if (worth == std::string_view::npos) malformed();
            value = value << 4 | static_cast<std::uint32_t>(worth);
            ++at_;
        }
        return value;
    }

    static void append(std::string & text, std::uint32_t code) {
        const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
        if (code < 0x80) {
            put(code);
            return;
        }
        if (code < 0x800) {
            put(0xc0 | code >> 6);
        } else {
            if (code < 0x10000) {
                put(0xe0 | code >> 12);
            } else {
                put(0xf0 | code >> 18);
                put(0x80 | (code >> 12 & 0x3f));
            }
            put(0x80 | (code >> 6 & 0x3f));
        }
        put(0x80 | (code & 0x3f));
    }

    const char * at_;
};

inline Scores read_scores(const char * json) {
    Scores scores;
    Json reader(json);
    reader.object([&](const std::string & key) {
        if (key == "path") scores.path = reader.string();
        else if (key == "leaves") reader.array([&] {
            LeafScore leaf;
            reader.object([&](const std::string & field) {
                if (field == "name") leaf.name = reader.string();
                else if (field == "tokens") leaf.tokens = static_cast<std::size_t>(reader.number());
                else if (field == "logprob") leaf.logprob = reader.number();
                else if (field == "logprob_per_token") leaf.logprob_per_token = reader.number();
                else reader.skip();
            });
            scores.leaves.push_back(std::move(leaf));
        });
        else reader.skip();
    });
    return scores;
}

}  // namespace detail

namespace detail {

/// `how` as the C interface takes it, without `progress`; it refers to the texts of `how` and to `lines`.
inline eliza_llm_open_options_t to_c(const OpenOptions & how, std::string & lines) {
    eliza_llm_open_options_t options{};
    options.struct_size = sizeof options;
    options.model_path = c_text(how.model, "model");
    options.context_size_tokens = how.context;
    options.num_threads = how.threads;
    options.gpu_layers = how.gpu_layers;
    options.device = c_text_or_null(how.device, "device");
    options.tensor_split = c_text_or_null(how.tensor_split, "tensor_split");
    options.tensor_devices = c_text_or_null(how.tensor_devices, "tensor_devices");
    options.kv_type = c_text_or_null(how.kv_type, "kv_type");
    options.kv_type_v = c_text_or_null(how.kv_type_v, "kv_type_v");
    options.slots = how.slots;
    options.n_batch = how.n_batch;
    options.snapshots = how.snapshots;
    options.parallel = how.parallel;
    options.max_slowdown_percent = how.max_slowdown_percent;
    options.draft = c_text_or_null(how.draft, "draft");
    options.store_directory = c_text_or_null(how.store_directory, "store_directory");
    options.store_bytes = how.store_bytes;
    options.vocab = c_text_or_null(how.vocab, "vocab");
    options.api_key = c_text_or_null(how.api_key, "api_key");
    options.certificates = c_text_or_null(how.certificates, "certificates");
    options.server_timeout_ms = how.server_timeout_ms;
    for (const std::string & model : how.fallback) lines += model + '\n';
    options.fallback = c_text_or_null(lines, "fallback");
    options.flags = (how.vocab_only ? ELIZA_OPEN_VOCAB_ONLY : 0U) | (how.concurrent_slots ? ELIZA_OPEN_CONCURRENT_SLOTS : 0U);
    return options;
}

}  // namespace detail

/// The devices of this machine as a JSON array, the best first, with scores, reasons and memory.
inline std::string devices() {
    detail::ErrorText error;
    return detail::text_of_process(eliza_inference_devices_json(error.out()), error);
}

/// What a `Stream` with these options would take of each device's memory, and whether it fits, as a JSON object. Nothing is
/// loaded.
inline std::string plan(const OpenOptions & how) {
    std::string lines;
    const eliza_llm_open_options_t options = detail::to_c(how, lines);
    detail::ErrorText error;
    return detail::text_of_process(eliza_inference_plan_json(&options, error.out()), error);
}

/// The metadata of a model file as a JSON object, in which long arrays are told by type and length; with a `key` the value of
/// that, whole.
inline std::string file_metadata(const std::string & path, const std::string & key = {}) {
    detail::ErrorText error;
    return detail::text_of_process(eliza_inference_file_metadata_json(detail::c_text(path, "path"),
                                                                      detail::c_text_or_null(key, "key"), error.out()), error);
}

/// A running generation that is pulled: a range of steps, read once.
///
/// Where it is given up before its end it is cancelled, and waited for: within about a token. It must not be used after its
/// stream is gone; being destroyed after it does no harm.
class Generation {
public:
    Generation(Generation && other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), step_(std::exchange(other.step_, std::nullopt)) {}
    Generation & operator=(Generation && other) noexcept {
        if (this != &other) {
            give_up();
            handle_ = std::exchange(other.handle_, nullptr);
            step_ = std::exchange(other.step_, std::nullopt);
        }
        return *this;
    }
    Generation(const Generation &) = delete;
    Generation & operator=(const Generation &) = delete;
    ~Generation() { give_up(); }

    /// Waits for the next step; none at the end. Why it ended says `Stream::finish`. Cancelled is an end like others.
    ///
    /// Throws with the code of the error that ended the generation.
    std::optional<Step> next() { return pull(-1); }

    /// As `next`, but waits at most so long: a step without tokens and text where nothing came in time.
    std::optional<Step> poll(std::chrono::milliseconds timeout) {
        constexpr std::chrono::milliseconds::rep longest = (std::numeric_limits<std::int32_t>::max)();
        return pull(static_cast<std::int32_t>(std::clamp<std::chrono::milliseconds::rep>(timeout.count(), 0, longest)));
    }

    /// The text of all steps that are left.
    std::string text() {
        std::string all;
        while (const std::optional<Step> step = next()) all += step->text;
        return all;
    }

    class Iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Step;
        using difference_type = std::ptrdiff_t;
        using pointer = const Step *;
        using reference = const Step &;

        Iterator() = default;
        explicit Iterator(Generation & of) : of_(&of) { ++*this; }

        reference operator*() const noexcept { return *of_->step_; }
        pointer operator->() const noexcept { return &*of_->step_; }
        Iterator & operator++() {
            of_->step_ = of_->next();
            if (!of_->step_) of_ = nullptr;
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const Iterator & a, const Iterator & b) noexcept { return a.of_ == b.of_; }
        friend bool operator!=(const Iterator & a, const Iterator & b) noexcept { return a.of_ != b.of_; }

    private:
        Generation * of_ = nullptr;
    };

    Iterator begin() { return Iterator(*this); }
    Iterator end() noexcept { return Iterator(); }

private:
    friend class Stream;
    explicit Generation(FfiLlmHandle handle) noexcept : handle_(handle) {}

    std::optional<Step> pull(std::int32_t timeout_ms) {
        if (handle_ == nullptr) return std::nullopt;
        std::int32_t tokens[32];
        char text[1024];
        std::size_t n = 0;
        detail::ErrorText error;
        const int status = eliza_inference_llm_stream_poll(handle_, timeout_ms, tokens, std::size(tokens), &n, text, sizeof text,
                                                           error.out());
        if (status != ELIZA_STREAM_MORE) handle_ = nullptr;
        if (status < 0 && status != ELIZA_ERR_CANCELLED) detail::fail(status, error.get());
        if (status != ELIZA_STREAM_MORE && n == 0 && text[0] == '\0') return std::nullopt;
        return Step{std::vector<Token>(tokens, tokens + n), text};
    }

    void give_up() noexcept {
        if (handle_ == nullptr) return;
        eliza_inference_llm_stream_cancel(handle_);
        std::int32_t token;
        char text[64];
        while (eliza_inference_llm_stream_next(handle_, &token, 1, nullptr, text, sizeof text, nullptr, nullptr, nullptr) ==
               ELIZA_STREAM_MORE) {
        }
        handle_ = nullptr;
    }

    FfiLlmHandle handle_;         // NULL once it ended
    std::optional<Step> step_{};  // the current step
};

/// An open model with its own context, or with a slot of another stream's, and one generation at a time.
class Stream {
public:
    /// Opens a model, and blocks while it is loaded. Streams on one file share its weights.
    ///
    /// Throws with `ELIZA_ERR_ABI_MISMATCH` where the library is of another major version than this header, what `progress`
    /// throws, and else with the code that `eliza_inference_take_last_failure` tells: `ELIZA_ERR_CANCELLED` where `progress`
    /// returned false.
    explicit Stream(const OpenOptions & how) {
        check_version();
        std::exception_ptr thrown;
        auto go_on = [&](float loaded) {
            bool more = false;
            detail::shielded(thrown, [&] { more = how.progress(loaded); });
            return more;
        };
        std::string lines;
        eliza_llm_open_options_t options = detail::to_c(how, lines);
        if (how.progress) {
            options.progress = [](float loaded, void * user) -> std::int32_t {
                return (*static_cast<decltype(go_on) *>(user))(loaded) ? 0 : 1;
            };
            options.progress_user_data = &go_on;
        }
        detail::ErrorText error;
        handle_ = eliza_inference_llm_stream_open_ex(&options, error.out());
        if (thrown != nullptr) {
            eliza_inference_llm_stream_close(handle_);
            std::rethrow_exception(thrown);
        }
        if (handle_ == nullptr) detail::fail_of_process(error.get());
    }

    Stream(Stream && other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Stream & operator=(Stream && other) noexcept {
        if (this != &other) {
            eliza_inference_llm_stream_close(handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    Stream(const Stream &) = delete;
    Stream & operator=(const Stream &) = delete;
    ~Stream() { eliza_inference_llm_stream_close(handle_); }

    /// A stream of one slot of this one, with options, trie or grammar, status, usage and cancel of its own, which generates at
    /// the same time as this one and those of its other slots; -1 takes one that has none. It needs `concurrent_slots`, and has
    /// the slot alone, with the tokens in it, until it ends; this stream keeps one slot at least. All share its context: where
    /// that is full, a slot is emptied in which nothing is going on. Each may end before the other.
    [[nodiscard]] Stream open_slot(std::int32_t slot = -1) {
        detail::ErrorText error;
        const FfiLlmHandle opened = eliza_inference_llm_stream_open_slot(handle_, slot, error.out());
        if (opened == nullptr) detail::fail_on(handle_);
        return Stream(opened);
    }

    /// The handle, for calls of the C interface; it stays this object's. NULL in what was moved from.
    FfiLlmHandle handle() const noexcept { return handle_; }

    // ---- text and tokens

    /// Text to token ids. `add_special` adds the begin- and end-of-text tokens that the model wants, `parse_special` turns the
    /// text of special tokens into those tokens: for templates, not for users' text.
    std::vector<Token> tokenize(std::string_view text, bool add_special = true, bool parse_special = false) const {
        int * tokens = nullptr;
        std::size_t n = 0;
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_tokenize(handle_, text.data(), text.size(), add_special, parse_special, &tokens, &n,
                                                        error.out()));
        const std::unique_ptr<int, FreeTokens> owned(tokens);
        return std::vector<Token>(tokens, tokens + n);
    }

    /// Token ids to text, which is UTF-8 where the tokens spell whole characters. `remove_special` leaves out what tokenizing
    /// adds, `unparse_special` writes control tokens as their text instead of leaving them out.
    std::string detokenize(const std::vector<Token> & tokens, bool remove_special = false, bool unparse_special = false) const {
        const auto write = [&](char * text, std::size_t size) {
            detail::ErrorText error;
            const int length = eliza_inference_llm_stream_detokenize(handle_, tokens.data(), tokens.size(), remove_special,
                                                                     unparse_special, text, size, error.out());
            error.check(length);
            return static_cast<std::size_t>(length);
        };
        std::string text(write(nullptr, 0), '\0');
        if (!text.empty()) write(text.data(), text.size() + 1);  // the NUL falls on the string's own
        return text;
    }

    /// Whether a token ends a generation.
    bool is_eog(Token token) const {
        const std::int32_t ends = eliza_inference_llm_stream_is_eog(handle_, token);
        check(ends);
        return ends != 0;
    }

    /// A token as a JSON object: text, spelling, score, attributes.
    std::string token(Token token) const {
        detail::ErrorText error;
        return text_of(eliza_inference_llm_stream_token_json(handle_, token, error.out()), error);
    }

    // ---- what is open

    /// Sizes, names, special tokens and placement as a JSON object.
    std::string describe() const {
        detail::ErrorText error;
        return text_of(eliza_inference_llm_stream_model_json(handle_, error.out()), error);
    }

    /// The metadata of the file, as `file_metadata` gives it.
    std::string metadata(const std::string & key = {}) const {
        detail::ErrorText error;
        return text_of(eliza_inference_llm_stream_metadata_json(handle_, detail::c_text_or_null(key, "key"), error.out()), error);
    }

    /// The prompt that the model's chat template makes of messages, as a JSON object: `text` and `tokens`. `inputs_json` has
    /// `messages`, and where wanted `tools`, `add_generation_prompt` and what else the template reads.
    std::string chat_prompt(const std::string & inputs_json) const {
        detail::ErrorText error;
        return text_of(eliza_inference_llm_stream_chat_prompt_json(handle_, detail::c_text(inputs_json, "inputs_json"), error.out()), error);
    }

    /// Takes an answer apart: the parts that `text`, its next piece, completes, as a JSON array. `inputs_json` begins a new
    /// answer, to the prompt that `chat_prompt` makes of it; empty goes on with the last one. `last` ends it. Set
    /// `SamplingOptions::special_text` for the generation.
    std::string chat_parts(const std::string & inputs_json, const std::string & text, bool last) {
        detail::ErrorText error;
        const char * inputs = detail::c_text_or_null(inputs_json, "inputs_json");
        return text_of(eliza_inference_llm_stream_chat_parts_json(handle_, inputs, text.data(), text.size(), last, error.out()), error);
    }

    // ---- generating

    /// Evaluates a prompt, and blocks until that is done; what the slot already holds of it is reused. Slot -1 is a fresh
    /// one, 0 and up pins a conversation.
    void prefill(const std::vector<Token> & prompt, std::int32_t slot = -1) {
        if (eliza_inference_llm_stream_prefill(handle_, prompt.data(), prompt.size(), slot) < 0) detail::fail_on(handle_);
    }

    /// As `prefill`, but returns at once: `status` is `ELIZA_STATUS_GENERATING` until it is over, then `ELIZA_OK` or the code of
    /// its error.
    void start_prefill(const std::vector<Token> & prompt, std::int32_t slot = -1) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_start_prefill(handle_, prompt.data(), prompt.size(), slot, error.out()));
    }

    /// Evaluates a prompt when the handle has nothing else to do, and returns at once: a later prompt that begins with it does
    /// not evaluate it again. Calls that need the model end it. Errors that come later wait for `take_error`.
    void prewarm(const std::vector<Token> & prompt, std::int32_t slot = -1) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_prewarm(handle_, prompt.data(), prompt.size(), slot, error.out()));
    }

    /// Pins a slot, or unpins it: a pinned one keeps its tokens when others need room, and is no fresh slot.
    void pin_slot(std::int32_t slot, bool pinned = true) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_pin_slot(handle_, slot, pinned ? 1 : 0, error.out()));
    }

    /// Starts a generation, to be pulled. A negative `max_tokens` goes on until the model stops or the context is full.
    [[nodiscard]] Generation generate(std::int32_t max_tokens, float temperature = as_configured, float top_p = as_configured) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_generate_ex(handle_, max_tokens, temperature, top_p, nullptr, nullptr, error.out()));
        return Generation(handle_);
    }

    /// Generates, and blocks until the end; the tokens go to `on_token`, on a thread of the library. An exception in
    /// `on_token` cancels the generation and comes out here.
    ///
    /// Throws with the code of the error that ended the generation; cancelled is an end like others.
    void generate(const OnToken & on_token, std::int32_t max_tokens, float temperature = as_configured,
                  float top_p = as_configured) {
        Run run{handle_, on_token};
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_generate_ex(handle_, max_tokens, temperature, top_p, &Run::receive, &run, error.out()));
        run.wait();
        if (run.thrown != nullptr) std::rethrow_exception(run.thrown);
        if (finish() == Finish::error) detail::fail_on(handle_);
    }

    /// The model's own logits of the last `n_last` positions (1 to 512) of the prompt: rows of as many numbers as the vocabulary
    /// has tokens, the first position first, without chain or bias. Blocks until they are computed; a generation may follow as
    /// if nothing had happened.
    std::vector<float> logits(std::int32_t n_last = 1) {
        detail::ErrorText asked;
        const std::int32_t count = eliza_inference_llm_stream_logits(handle_, n_last, nullptr, 0, asked.out());
        asked.check(count);
        std::vector<float> rows(static_cast<std::size_t>(count));
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_logits(handle_, n_last, rows.data(), rows.size(), error.out()));
        return rows;
    }

    /// The rows of texts: their embeddings, in the order of the texts. A prompt that waits for its generation is forgotten.
    Embeddings embed(const std::vector<std::string> & texts, const EmbeddingOptions & options = {}) {
        std::string all;
        std::vector<std::size_t> lens;
        for (const std::string & text : texts) {
            all += text;
            lens.push_back(text.size());
        }
        return rows([&](auto... out) {
            const eliza_llm_embedding_options_t c_options = c_of(options);
            return eliza_inference_llm_stream_embed(handle_, &c_options, all.data(), lens.data(), lens.size(), out...);
        });
    }

    /// As above, of texts that are tokens already.
    Embeddings embed(const std::vector<std::vector<Token>> & texts, const EmbeddingOptions & options = {}) {
        std::vector<Token> all;
        std::vector<std::size_t> counts;
        for (const std::vector<Token> & text : texts) {
            all.insert(all.end(), text.begin(), text.end());
            counts.push_back(text.size());
        }
        return rows([&](auto... out) {
            const eliza_llm_embedding_options_t c_options = c_of(options);
            return eliza_inference_llm_stream_embed_tokens(handle_, &c_options, all.data(), counts.data(), counts.size(), out...);
        });
    }

    /// How well each text answers a question, by a model with a classifier (a reranker): higher is better.
    std::vector<float> rank(std::string_view query, const std::vector<std::string> & texts) {
        std::string all;
        std::vector<std::size_t> lens;
        for (const std::string & text : texts) {
            all += text;
            lens.push_back(text.size());
        }
        std::vector<float> scores(texts.size());
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_rank(handle_, query.data(), query.size(), all.data(), lens.data(), lens.size(),
                                                    scores.data(), error.out()));
        return scores;
    }

    /// Asks a running prefill, scoring, embedding or generation to stop: one atomic store, never waits.
    void cancel() const noexcept { eliza_inference_llm_stream_cancel(handle_); }

    /// `ELIZA_STATUS_GENERATING` at work, else the outcome of what finished last.
    std::int32_t status() const noexcept { return eliza_inference_llm_stream_status(handle_); }

    /// Why the last generation ended.
    Finish finish() const { return static_cast<Finish>(usage().finish_reason); }

    // ---- token tries

    /// Constrains what follows to the leaves of a token trie (JSON), until it is cleared or replaced. One that is refused
    /// bars generating until another is set or `clear_trie` is called.
    void set_trie(std::string_view payload, TrieMode mode) {
        if (eliza_inference_set_token_trie(handle_, payload.data(), payload.size(), static_cast<int>(mode)) < 0) {
            detail::fail_on(handle_);
        }
    }

    /// Removes the constraint.
    void clear_trie() {
        if (eliza_inference_clear_token_trie(handle_) < 0) detail::fail_on(handle_);
    }

    /// Arms one descriptor of the trie, by its path.
    void arm_trie(const std::string & path) {
        if (eliza_inference_arm_token_trie(handle_, detail::c_text(path, "path")) < 0) detail::fail_on(handle_);
    }

    /// Arms the next descriptor in payload order, after the last the first.
    void arm_next_trie() {
        if (eliza_inference_arm_token_trie(handle_, nullptr) < 0) detail::fail_on(handle_);
    }

    /// Makes the payload of one descriptor from names, by the model's own tokenizer. Names are tokenized in their
    /// surroundings: `before` is the text before them, at least from the last line break on, `after` the closing delimiter, a
    /// part of every leaf.
    TriePayload build_trie(const std::string & path, const std::vector<std::string> & names, const std::string & before = {},
                           const std::string & after = {}, bool parse_special = false) const {
        std::vector<const char *> texts;
        for (const std::string & name : names) texts.push_back(detail::c_text(name, "names"));
        char * warnings = nullptr;
        detail::ErrorText error;
        const String json(eliza_inference_build_token_trie(handle_, detail::c_text(path, "path"), texts.data(), texts.size(),
                                                           detail::c_text(before, "before"), detail::c_text(after, "after"),
                                                           parse_special, &warnings, error.out()));
        const String owned(warnings);
        if (json == nullptr) fail_with(error, ELIZA_ERR_INVALID_ARG);
        return TriePayload{json.get(), owned != nullptr ? owned.get() : ""};
    }

    // ---- grammars

    /// Holds what follows to a grammar, from its start: the JSON that `eliza_inference_set_grammar` takes. It persists until it
    /// is cleared or replaced, and takes the place of a token trie. One that is refused bars generating until another is set
    /// or `clear_grammar` is called.
    void set_grammar(std::string_view json) {
        if (eliza_inference_set_grammar(handle_, json.data(), json.size()) < 0) detail::fail_on(handle_);
    }

    /// Removes the grammar; a token trie stays.
    void clear_grammar() {
        if (eliza_inference_clear_grammar(handle_) < 0) detail::fail_on(handle_);
    }

    /// Scores every leaf of the descriptor armed last as what follows the prompt, and blocks until that is done. A generation
    /// may follow, and more scoring.
    Scores score_trie() {
        detail::ErrorText error;
        const String json(eliza_inference_score_token_trie(handle_, error.out()));
        if (json == nullptr) fail_with(error, ELIZA_ERR_BUSY);
        return detail::read_scores(json.get());
    }

    // ---- saved slots

    /// Saves a slot to a file, and blocks until that is done; -1 is the slot of the last prefill or restore. The file holds the
    /// prompt. A file that is there is replaced as a whole.
    void save_slot(const std::string & path, std::int32_t slot = -1) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_save_slot(handle_, slot, detail::c_text(path, "path"), error.out()));
    }

    /// Brings what `save_slot` wrote into a slot, in place of what that holds, and blocks until that is done; -1 is a fresh
    /// one. A generation may follow at once, and goes on where the saved stream stopped. Returns how many tokens it has.
    std::int32_t restore_slot(const std::string & path, std::int32_t slot = -1) {
        detail::ErrorText error;
        const std::int32_t tokens =
            eliza_inference_llm_stream_restore_slot(handle_, slot, detail::c_text(path, "path"), error.out());
        error.check(tokens);
        return tokens;
    }

    /// Keeps a slot in the folder `OpenOptions::store_directory` under a key, and blocks until that is done; -1 is the slot of
    /// the last prefill or restore.
    void persist(const std::string & key, std::int32_t slot = -1) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_persist(handle_, slot, detail::c_text(key, "key"), error.out()));
    }

    /// Restores what `persist` kept under a key, as `restore_slot` does. Returns how many tokens the stream has; 0 where there
    /// is nothing under that key.
    std::int32_t resume(const std::string & key, std::int32_t slot = -1) {
        detail::ErrorText error;
        const std::int32_t tokens = eliza_inference_llm_stream_resume(handle_, slot, detail::c_text(key, "key"), error.out());
        error.check(tokens);
        return tokens;
    }

    /// Removes what `persist` kept under a key; whether there was something.
    bool forget(const std::string & key) {
        detail::ErrorText error;
        const std::int32_t found = eliza_inference_llm_stream_forget(handle_, detail::c_text(key, "key"), error.out());
        error.check(found);
        return found == 1;
    }

    // ---- options

    /// How generations sample now; stop strings, biases and other texts are not told.
    SamplingOptions sampling() const {
        eliza_llm_sampling_options_t now{};
        now.struct_size = sizeof now;
        check(eliza_inference_llm_stream_sampling_defaults(handle_, &now));
        SamplingOptions options;
        options.seed = now.seed;
        options.top_k = now.top_k;
        options.min_p = now.min_p;
        options.repeat_penalty = now.repeat_penalty;
        options.repeat_last_n = now.repeat_last_n;
        options.presence_penalty = now.presence_penalty;
        options.frequency_penalty = now.frequency_penalty;
        options.on_span_end = static_cast<SpanEnd>(now.on_span_end);
        options.strict_trie = now.strict_trie != 0;
        options.ignore_eos = now.ignore_eos != 0;
        options.n_candidates = now.n_candidates;
        options.on_context_full = static_cast<ContextFull>(now.on_context_full);
        options.n_keep = now.n_keep;
        options.special_text = now.special_text != 0;
        options.no_guessing = now.no_guessing != 0;
        options.generator = static_cast<Generator>(now.generator);
        options.top_n_sigma = now.top_n_sigma;
        options.typical_p = now.typical_p;
        options.xtc_probability = now.xtc_probability;
        options.xtc_threshold = now.xtc_threshold;
        options.dynatemp_range = now.dynatemp_range;
        options.dynatemp_exponent = now.dynatemp_exponent;
        options.dry_multiplier = now.dry_multiplier;
        options.dry_base = now.dry_base;
        options.dry_allowed_length = now.dry_allowed_length;
        options.dry_last_n = now.dry_last_n;
        options.mirostat = now.mirostat;
        options.mirostat_tau = now.mirostat_tau;
        options.mirostat_eta = now.mirostat_eta;
        options.adaptive_target = now.adaptive_target;
        options.adaptive_decay = now.adaptive_decay;
        options.min_keep = now.min_keep;
        options.reasoning_budget = now.reasoning_budget;
        return options;
    }

    /// Sets how later generations sample.
    void configure(const SamplingOptions & how) {
        std::vector<const char *> stop;
        for (const std::string & text : how.stop) stop.push_back(detail::c_text(text, "stop"));
        std::vector<Token> ids;
        std::vector<float> values;
        for (const auto & [token, bias] : how.logit_bias) {
            ids.push_back(token);
            values.push_back(bias);
        }
        eliza_llm_sampling_options_t options{};
        options.struct_size = sizeof options;
        options.seed = how.seed;
        options.top_k = how.top_k;
        options.min_p = how.min_p;
        options.repeat_penalty = how.repeat_penalty;
        options.repeat_last_n = how.repeat_last_n;
        options.presence_penalty = how.presence_penalty;
        options.frequency_penalty = how.frequency_penalty;
        options.stop = stop.data();
        options.n_stop = stop.size();
        options.logit_bias_ids = ids.data();
        options.logit_bias_values = values.data();
        options.n_logit_bias = ids.size();
        options.on_span_end = static_cast<std::uint32_t>(how.on_span_end);
        options.strict_trie = how.strict_trie;
        options.ignore_eos = how.ignore_eos;
        options.n_candidates = how.n_candidates;
        options.on_context_full = static_cast<std::uint32_t>(how.on_context_full);
        options.n_keep = how.n_keep;
        options.special_text = how.special_text;
        options.no_guessing = how.no_guessing;
        std::vector<const char *> breakers;
        for (const std::string & text : how.dry_breakers) breakers.push_back(detail::c_text(text, "dry_breakers"));
        options.generator = static_cast<std::uint32_t>(how.generator);
        if (!how.samplers.empty()) options.samplers = detail::c_text(how.samplers, "samplers");
        options.top_n_sigma = how.top_n_sigma;
        options.typical_p = how.typical_p;
        options.xtc_probability = how.xtc_probability;
        options.xtc_threshold = how.xtc_threshold;
        options.dynatemp_range = how.dynatemp_range;
        options.dynatemp_exponent = how.dynatemp_exponent;
        options.dry_multiplier = how.dry_multiplier;
        options.dry_base = how.dry_base;
        options.dry_allowed_length = how.dry_allowed_length;
        options.dry_last_n = how.dry_last_n;
        options.dry_breakers = breakers.data();
        options.n_dry_breakers = breakers.size();
        options.mirostat = how.mirostat;
        options.mirostat_tau = how.mirostat_tau;
        options.mirostat_eta = how.mirostat_eta;
        options.adaptive_target = how.adaptive_target;
        options.adaptive_decay = how.adaptive_decay;
        options.min_keep = how.min_keep;
        options.reasoning_budget = how.reasoning_budget;
        if (!how.reasoning_start.empty()) options.reasoning_start = detail::c_text(how.reasoning_start, "reasoning_start");
        if (!how.reasoning_end.empty()) options.reasoning_end = detail::c_text(how.reasoning_end, "reasoning_end");
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_configure(handle_, &options, error.out()));
    }

    /// Sets the sampler chain of later generations on a slot, in place of the options: "top_k=40;top_p=0.95;temp=0.8". An
    /// empty text goes back to the options; slot -1 means fresh slots.
    void set_chain(const std::string & chain, std::int32_t slot = -1) {
        detail::ErrorText error;
        error.check(eliza_inference_llm_stream_set_chain(handle_, slot, detail::c_text_or_null(chain, "chain"), error.out()));
    }

    // ---- what happened

    /// What the last prompt and the generation after it used, also while it runs.
    Usage usage() const {
        Usage usage{};
        usage.struct_size = sizeof usage;
        check(eliza_inference_llm_stream_usage(handle_, &usage));
        return usage;
    }

    /// The same and what numbers cannot say (model, device, sizes), as a JSON object.
    std::string usage_json() const {
        const String json(eliza_inference_llm_stream_usage_json(handle_));
        if (json == nullptr) detail::fail_on(handle_);
        return json.get();
    }

    /// How the last sampled token of a slot was drawn, with as many candidates as the option `n_candidates` asks for.
    Sampled sampled(std::int32_t slot = -1) const {
        eliza_llm_sampled_t drawn{};
        drawn.struct_size = sizeof drawn;
        check(eliza_inference_llm_stream_sampled(handle_, slot, &drawn));
        std::vector<Candidate> candidates(drawn.n_candidates);
        if (!candidates.empty()) {
            // Asked again, for the token that is the last one now.
            drawn.candidates = candidates.data();
            drawn.candidates_cap = candidates.size();
            check(eliza_inference_llm_stream_sampled(handle_, slot, &drawn));
            candidates.resize((std::min)(candidates.size(), drawn.n_candidates));
        }
        return Sampled{drawn.token, drawn.logprob, drawn.probability, std::move(candidates)};
    }

private:
    explicit Stream(FfiLlmHandle handle) noexcept : handle_(handle) {}

    struct FreeTokens {
        void operator()(int * tokens) const noexcept { eliza_inference_free_tokens(tokens); }
    };

    struct FreeRows {
        void operator()(float * rows) const noexcept { eliza_inference_free_rows(rows); }
    };

    static eliza_llm_embedding_options_t c_of(const EmbeddingOptions & options) {
        return {sizeof(eliza_llm_embedding_options_t), static_cast<std::int32_t>(options.pooling), options.dimensions,
                options.normalize ? 0u : 1u};
    }

    /// The rows that a call of the C interface gives.
    template <typename Call>
    static Embeddings rows(const Call & call) {
        float * given = nullptr;
        std::size_t n = 0, width = 0;
        detail::ErrorText error;
        error.check(call(&given, &n, &width, error.out()));
        const std::unique_ptr<float, FreeRows> owned(given);
        return {width, std::vector<float>(given, given + n * width)};
    }

    /// A generation with a callback, from the call that started it to its terminal event.
    struct Run {
        FfiLlmHandle handle;
        const OnToken & on_token;
        std::exception_ptr thrown{};
        std::mutex lock{};
        std::condition_variable ended{};
        bool done = false;

        static void receive(std::int32_t token, const char * text, std::size_t length, bool is_done, void * user) noexcept {
            Run & run = *static_cast<Run *>(user);
            if (run.thrown == nullptr && !(is_done && length == 0)) {
                detail::shielded(run.thrown, [&] { run.on_token(token, std::string_view(text, length)); });
                if (run.thrown != nullptr) eliza_inference_llm_stream_cancel(run.handle);
            }
            if (!is_done) return;
            // Under the lock to the end: the waiting thread destroys what is notified here.
            const std::lock_guard<std::mutex> held(run.lock);
            run.done = true;
            run.ended.notify_one();
        }

        void wait() {
            std::unique_lock<std::mutex> held(lock);
            ended.wait(held, [&] { return done; });
        }
    };

    /// Throws where a call that has no text of its own failed.
    void check(std::int32_t status) const {
        if (status < 0) {
            String text(eliza_inference_llm_stream_take_error(handle_));
            if (text == nullptr) text.reset(eliza_inference_take_last_error());
            detail::fail(status, text.get());
        }
    }

    /// The text of a question that gives NULL where it fails, which is legal at any time.
    std::string text_of(char * text, const detail::ErrorText & error) const {
        const String owned(text);
        if (owned == nullptr) fail_with(error, ELIZA_ERR_INVALID_ARG);
        return owned.get();
    }

    /// Throws what a call that returned NULL failed with; `at_work` is what that means while a generation runs, whose status
    /// hides that of the call.
    [[noreturn]] void fail_with(const detail::ErrorText & error, std::int32_t at_work) const {
        const std::int32_t code = status();
        detail::fail(code < 0 ? code : at_work, error.get());
    }

    static void check_version() {
        const std::string_view version = eliza_inference_abi_version(), wanted = ELIZA_STREAM_ABI_VERSION;
        const std::size_t shared = wanted.find('.') + 1;
        if (version.substr(0, shared) == wanted.substr(0, shared)) return;
        const std::string text = "The library is " + std::string(version) + ", this program was made for " + std::string(wanted);
        detail::fail(ELIZA_ERR_ABI_MISMATCH, text.c_str());
    }

    FfiLlmHandle handle_ = nullptr;
};

/// A token trie as a sampler: of a llama.cpp chain, or by itself where there is no libllama in the process.
///
/// Where both headers are needed, include llama.h first.
class Sampler {
public:
    /// What frees a sampler.
    using Free = std::function<void(llama_sampler *)>;

    /// Makes a sampler, armed at its first descriptor; `TrieMode::score_leaves` is refused. Tokens are checked against `vocab`
    /// where there is one.
    ///
    /// `free` frees it while no chain owns it: where a libllama is in the process that libllama's `llama_sampler_free`, else
    /// nothing needs to be given.
    Sampler(const std::string & payload, TrieMode mode, const llama_vocab * vocab = nullptr,
            Free free = eliza_inference_sampler_free)
        : sampler_(llama_sampler_init_token_trie(vocab, detail::c_text(payload, "payload"), static_cast<int>(mode)),
                   std::move(free)) {
        if (sampler_ == nullptr) detail::fail_of_process();
    }

    /// The sampler; it stays this object's. NULL in what was moved from or released.
    llama_sampler * get() const noexcept { return sampler_.get(); }

    /// Hands it over, as `llama_sampler_chain_add` takes it.
    [[nodiscard]] llama_sampler * release() noexcept { return sampler_.release(); }

    /// `token-trie`; NULL where there is no sampler.
    const char * name() const noexcept { return eliza_inference_sampler_name(get()); }

    /// Passes a sampled token, or a token of the prompt, to the sampler.
    void accept(Token token) { check(eliza_inference_sampler_accept(get(), token)); }

    /// Sets the logits of illegal tokens in a list of candidates to minus infinity; a greedy sampler then ends the list after
    /// the likeliest legal one.
    void apply(llama_token_data_array & candidates) { check(eliza_inference_sampler_apply(get(), &candidates)); }

    /// Arms the first descriptor again.
    void reset() { check(eliza_inference_sampler_reset(get())); }

    /// Arms one descriptor, by its path.
    void arm(const std::string & path) { check(eliza_inference_sampler_arm(get(), detail::c_text(path, "path"))); }

    /// Arms the next descriptor in payload order, after the last the first.
    void arm_next() { check(eliza_inference_sampler_arm(get(), nullptr)); }

    /// An independent one that goes on from the same place.
    Sampler clone() const {
        Sampler copy(Owned(eliza_inference_sampler_clone(get()), sampler_.get_deleter()));
        if (copy.sampler_ == nullptr) detail::fail_of_process();
        return copy;
    }

private:
    using Owned = std::unique_ptr<llama_sampler, Free>;

    explicit Sampler(Owned sampler) noexcept : sampler_(std::move(sampler)) {}

    static void check(std::int32_t status) {
        if (status < 0) detail::fail_of_process();
    }

    Owned sampler_;
};

}  // namespace eliza

#endif  // ELIZA_INFERENCE_HPP
