/* SPDX-License-Identifier: Apache-2.0 */
/* Yama, which keeps processes of one user from each other's memory (kernel.yama.ptrace_scope). */
#ifndef TESTS_INTEGRATION_LIB_YAMA_H
#define TESTS_INTEGRATION_LIB_YAMA_H

/* This machine's ptrace_scope, 0 where it has no Yama. */
int yama_scope(void);
/* From now on this process finds what it would find where ptrace_scope is 1, and is refused what it
 * would be refused: process_vm_readv and process_vm_writev. Root only. 0 or a negative errno. */
int yama_pretend(void);

#endif
