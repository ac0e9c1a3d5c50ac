/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the configuration space of a PCI device: the registers that decide how it moves bytes.
 * Pure: the caller passes the bytes, which may be cut short. */
#ifndef WH_TOPOLOGY_PCI_CONFIG_H
#define WH_TOPOLOGY_PCI_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#define WH_PCI_CONFIG 4096
#define WH_PCI_CONFIG_PUBLIC 64 /* bytes that Linux shows without CAP_SYS_ADMIN */

enum {
	WH_PCI_EXPRESS = 0x10, /* a capability */
	WH_PCI_ACS = 0x0d, /* an extended capability: access control services */
};

/* The offset of a capability, or of an extended one. 0: the device has none, or the bytes end
 * before it. */
size_t wh_pci_capability(const uint8_t *config, size_t size, unsigned id);
size_t wh_pci_extended(const uint8_t *config, size_t size, unsigned id);

/* Does ACS make this bridge send traffic between its devices up to the host first? 1: yes; 0: no;
 * -ENODATA: the bytes end before the register, or the device is gone. */
int wh_pci_redirects(const uint8_t *config, size_t size);

/* May the device request relaxed ordering? 1, 0 or -ENODATA, as above. */
int wh_pci_relaxed(const uint8_t *config, size_t size);

#endif
