/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration space of PCI devices, as far as it decides how they move bytes. */
#ifndef WH_TOPOLOGY_CONFIG_H
#define WH_TOPOLOGY_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#define WH_PCI_CONFIG 4096
#define WH_PCI_CONFIG_PUBLIC 64 /* all that is shown without CAP_SYS_ADMIN */

enum {
	WH_PCI_EXPRESS = 0x10, /* a capability */
	WH_PCI_ACS = 0x0d, /* an extended one */
};

/* Where a capability, or an extended one, starts; 0: there is none, or the bytes do not go so
 * far. */
size_t wh_pci_capability(const uint8_t *config, size_t size, unsigned id);
size_t wh_pci_extended(const uint8_t *config, size_t size, unsigned id);

/* Does a bridge send what goes from one of its devices to another up to the host first (ACS)? 1:
 * yes; 0: no; -ENODATA: the bytes do not say. */
int wh_pci_redirects(const uint8_t *config, size_t size);

/* May a device ask for relaxed ordering? 1, 0 or -ENODATA. */
int wh_pci_relaxed(const uint8_t *config, size_t size);

#endif
