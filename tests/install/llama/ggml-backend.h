/* What the examples use of ggml-backend.h. */

#ifdef __cplusplus
extern "C" {
#endif
void ggml_backend_load_all(void);
#ifdef __cplusplus
}
#endif
