/* SPDX-License-Identifier: Apache-2.0 */
/* yama.h: Yama (kernel.yama.ptrace_scope), which keeps the processes of one user from each other's
 * memory */
#ifndef TESTS_INTEGRATION_LIB_YAMA_H
#define TESTS_INTEGRATION_LIB_YAMA_H

/* The machine's ptrace_scope; 0 without Yama. */
int yama_scope(void);
/* Make this process behave as under ptrace_scope 1: files show that scope, and the kernel refuses
 * process_vm_readv and process_vm_writev. Root only; permanent. 0 or a negative errno. */
int yama_pretend(void);

#endif
