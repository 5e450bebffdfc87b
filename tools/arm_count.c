/* A plugin of qemu for tools/arm_count.py: writes how many instructions a program executed to the file of `out=FILE`. The few
 * functions of qemu's interface that it needs are declared here, since packages of qemu have no header
 * (https://www.qemu.org/docs/master/devel/tcg-plugins.html, version 1). */

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct qemu_info;
struct qemu_plugin_tb;
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t id, struct qemu_plugin_tb * block));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb * block, int add, void * to, uint64_t what);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*ended)(uint64_t id, void * data), void * data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb * block);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed;
static FILE * out;

static void translated(uint64_t id, struct qemu_plugin_tb * block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &executed, qemu_plugin_tb_n_insns(block));
}

static void ended(uint64_t id, void * data) {
    (void)id;
    (void)data;
    fprintf(out, "%" PRIu64 "\n", executed);
    fclose(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const struct qemu_info * info, int argc, char ** argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || !(out = fopen(argv[0] + 4, "w"))) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
