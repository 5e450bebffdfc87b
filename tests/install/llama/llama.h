/* What the examples use of llama.h, for a libllama that comes without its headers: version 0.5, as tests/c/peer.h has it. */

#include "../../c/peer.h"

#ifdef __cplusplus
extern "C" {
#endif
#define DECLARE(result, name, arguments) result name arguments;
PEER_API(DECLARE)
#undef DECLARE
int32_t llama_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens, int32_t n_max,
                       bool add_special, bool parse_special);
int32_t llama_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * text, int32_t length, int32_t lstrip,
                             bool special);
#ifdef __cplusplus
}
#endif
