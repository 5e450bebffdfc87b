/* What hosts of ABI 15 expect of the library: names, parameters and the layout of one structure, as the interface is
 * published for ABI 13, and the functions of ABI 14 that elizaOS's loader looks for. */
#include <stddef.h>
#include <stdint.h>

typedef struct EliInferenceContext EliInferenceContext;
typedef struct EliLlmStream EliLlmStream;
typedef struct EliVad EliVad;
typedef struct EliWakeWord EliWakeWord;
typedef struct EliSpeaker EliSpeaker;
typedef struct EliDiariz EliDiariz;
typedef struct EliAsrStream EliAsrStream;

typedef struct {
    int32_t max_tokens;
    float temperature;
    float top_p;
    int32_t top_k;
    float repeat_penalty;
    int32_t slot_id;
    const char *prompt_cache_key;
    int32_t draft_min;
    int32_t draft_max;
    const char *mtp_drafter_path;
    const char *gbnf_grammar;
    int32_t disable_thinking;
    int32_t n_gpu_layers;
    const char *cache_type_k;
    const char *cache_type_v;
    int32_t context_size;
} eliza_llm_stream_config_t;

typedef struct EliVerifierEvent {
    const int *accepted_token_ids;
    size_t n_accepted;
    int rejected_from;
    int rejected_to;
    const int *corrected_token_ids;
    size_t n_corrected;
} EliVerifierEvent;

typedef int (*eliza_tts_chunk_cb)(const float *pcm, size_t n_samples, int is_final, void *user_data);
typedef void (*eliza_verifier_cb)(const EliVerifierEvent *ev, void *user_data);

/* Contexts. */
const char *eliza_inference_abi_version(void);
EliInferenceContext *eliza_inference_create(const char *bundle_dir, char **out_error);
void eliza_inference_destroy(EliInferenceContext *ctx);
int eliza_inference_mmap_acquire(EliInferenceContext *ctx, const char *region_name, char **out_error);
int eliza_inference_mmap_evict(EliInferenceContext *ctx, const char *region_name, char **out_error);
void eliza_inference_free_string(char *str);
void eliza_inference_free_tokens(int *tokens);

/* Streams of text. */
int eliza_inference_llm_stream_supported(void);
int eliza_inference_llm_mtp_supported(void);
int eliza_inference_llm_kv_quant_supported(void);
EliLlmStream *eliza_inference_llm_stream_open(EliInferenceContext *ctx, const eliza_llm_stream_config_t *cfg,
                                              char **out_error);
int eliza_inference_llm_stream_prefill(EliLlmStream *stream, const int32_t *token_ids, size_t num_tokens,
                                       char **out_error);
int eliza_inference_llm_stream_next(EliLlmStream *stream, int32_t *tokens_out, size_t tokens_cap,
                                    size_t *num_tokens_out, char *text_out, size_t text_cap,
                                    int32_t *drafter_drafted_out, int32_t *drafter_accepted_out, char **out_error);
int eliza_inference_llm_stream_cancel(EliLlmStream *stream);
int eliza_inference_llm_stream_save_slot(EliLlmStream *stream, const char *filename, char **out_error);
int eliza_inference_llm_stream_restore_slot(EliLlmStream *stream, const char *filename, char **out_error);
int eliza_inference_llm_stream_reset(EliLlmStream *stream);
int eliza_inference_llm_stream_reset_keep(EliLlmStream *stream, int32_t n_keep);
void eliza_inference_llm_stream_close(EliLlmStream *stream);

/* Tokens, embeddings, the end of a turn. */
int eliza_inference_tokenize_supported(void);
int eliza_inference_tokenize(EliInferenceContext *ctx, const char *text, size_t text_len, int add_special,
                             int parse_special, int **out_tokens, size_t *out_n, char **out_error);
int eliza_inference_detokenize(EliInferenceContext *ctx, const int *tokens, size_t n_tokens, int remove_special,
                               int unparse_special, char *out_text, size_t max_text_bytes, char **out_error);
int eliza_inference_embed_supported(void);
int eliza_inference_embed(EliInferenceContext *ctx, const char *text, size_t text_len, int pooling,
                          float *out_embedding, size_t out_capacity, int *out_dim, char **out_error);
int eliza_inference_llm_eot_supported(void);
int eliza_inference_llm_eot_score(EliInferenceContext *ctx, const int32_t *token_ids, size_t num_tokens,
                                  int32_t target_token_id, float *out_target_prob, int32_t *out_top_token,
                                  float *out_top_prob, char **out_error);

/* Speech from text. */
int eliza_inference_tts_synthesize(EliInferenceContext *ctx, const char *text, size_t text_len,
                                   const char *speaker_preset_id, float *out_pcm, size_t max_samples,
                                   char **out_error);
int eliza_inference_tts_stream_supported(void);
int eliza_inference_tts_synthesize_stream(EliInferenceContext *ctx, const char *text, size_t text_len,
                                          const char *speaker_preset_id, eliza_tts_chunk_cb on_chunk,
                                          void *user_data, char **out_error);
int eliza_inference_cancel_tts(EliInferenceContext *ctx, char **out_error);
int eliza_inference_encode_reference(EliInferenceContext *ctx, const float *pcm, size_t n_samples,
                                     int sample_rate_hz, int *out_K, int *out_ref_T, int **out_tokens,
                                     char **out_error);
int eliza_inference_kokoro_supported(void);
int eliza_inference_kokoro_load(EliInferenceContext *ctx, const char *gguf_path, const char *voice_bin_path,
                                int style_dim, char **out_error);
int eliza_inference_kokoro_synthesize(EliInferenceContext *ctx, const char *text, size_t text_len, float speed,
                                      float *out_pcm, size_t max_samples, char **out_error);
int eliza_inference_kokoro_sample_rate(EliInferenceContext *ctx);
int eliza_inference_kokoro_g2p_kind(EliInferenceContext *ctx);
int eliza_inference_kokoro_synthesize_ipa(EliInferenceContext *ctx, const char *ipa, size_t ipa_len, float speed,
                                          float *out_pcm, size_t max_samples, char **out_error);
int eliza_inference_set_verifier_callback(EliInferenceContext *ctx, eliza_verifier_cb cb, void *user_data,
                                          char **out_error);

/* Text from speech. */
int eliza_inference_asr_transcribe(EliInferenceContext *ctx, const float *pcm, size_t n_samples, int sample_rate_hz,
                                   char *out_text, size_t max_text_bytes, char **out_error);
int eliza_inference_asr_timestamps_supported(void);
int eliza_inference_asr_transcribe_timed(EliInferenceContext *ctx, const float *pcm, size_t n_samples,
                                         int sample_rate_hz, char *out_text, size_t max_text_bytes,
                                         int *out_word_start_ms, int *out_word_end_ms, size_t *io_n_words,
                                         char **out_error);
int eliza_inference_asr_stream_supported(void);
EliAsrStream *eliza_inference_asr_stream_open(EliInferenceContext *ctx, int sample_rate_hz, char **out_error);
int eliza_inference_asr_stream_feed(EliAsrStream *stream, const float *pcm, size_t n_samples, char **out_error);
int eliza_inference_asr_stream_partial(EliAsrStream *stream, char *out_text, size_t max_text_bytes, int *out_tokens,
                                       size_t *io_n_tokens, char **out_error);
int eliza_inference_asr_stream_finish(EliAsrStream *stream, char *out_text, size_t max_text_bytes, int *out_tokens,
                                      size_t *io_n_tokens, char **out_error);
void eliza_inference_asr_stream_close(EliAsrStream *stream);

/* Who speaks, and whether. */
int eliza_inference_vad_supported(void);
EliVad *eliza_inference_vad_open(EliInferenceContext *ctx, int sample_rate_hz, char **out_error);
int eliza_inference_vad_process(EliVad *vad, const float *pcm, size_t n_samples, float *out_probability,
                                char **out_error);
int eliza_inference_vad_reset(EliVad *vad, char **out_error);
void eliza_inference_vad_close(EliVad *vad);
int eliza_inference_wakeword_supported(void);
EliWakeWord *eliza_inference_wakeword_open(EliInferenceContext *ctx, int sample_rate_hz, const char *head_name,
                                           char **out_error);
int eliza_inference_wakeword_score(EliWakeWord *wake, const float *pcm, size_t n_samples, float *out_probability,
                                   char **out_error);
int eliza_inference_wakeword_reset(EliWakeWord *wake, char **out_error);
void eliza_inference_wakeword_close(EliWakeWord *wake);
int eliza_inference_speaker_supported(void);
EliSpeaker *eliza_inference_speaker_open(EliInferenceContext *ctx, const char *gguf_path, char **out_error);
int eliza_inference_speaker_embed(EliSpeaker *speaker, const float *pcm, size_t n_samples, float *out_embedding,
                                  char **out_error);
void eliza_inference_speaker_free(float *embedding);
void eliza_inference_speaker_close(EliSpeaker *speaker);
int eliza_inference_diariz_supported(void);
EliDiariz *eliza_inference_diariz_open(EliInferenceContext *ctx, const char *gguf_path, char **out_error);
int eliza_inference_diariz_segment(EliDiariz *diariz, const float *pcm, size_t n_samples, int8_t *out_labels,
                                   size_t *io_n_labels, char **out_error);
void eliza_inference_diariz_close(EliDiariz *diariz);

/* Images. */
int eliza_inference_vision_supported(void);
int eliza_inference_describe_image(EliInferenceContext *ctx, const unsigned char *image_bytes, size_t n_bytes,
                                   const char *mmproj_path, const char *prompt, char *out_text, size_t max_text_bytes,
                                   char **out_error);
int eliza_inference_vision_stream_supported(void);
EliLlmStream *eliza_inference_describe_image_stream_open(EliInferenceContext *ctx, const unsigned char *image_bytes,
                                                         size_t n_bytes, const char *mmproj_path, const char *prompt,
                                                         char **out_error);
