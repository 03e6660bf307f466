// Felix's own code as a program: felix_limits DEVICE INGRESS EGRESS BURST, rates in bit/s and the burst in bits, 0 for no limit.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/projectcalico/calico/felix/dataplane/linux/qos"
)

func main() {
	if len(os.Args) != 5 {
		fail(fmt.Errorf("usage: felix_limits DEVICE INGRESS EGRESS BURST"))
	}
	device, burst := os.Args[1], number(os.Args[4])
	if rate := number(os.Args[2]); rate > 0 {
		fail(qos.CreateOrUpdateIngressQdisc(qos.GetTBFValues(rate, burst, 0, 0), device))
	}
	if rate := number(os.Args[3]); rate > 0 {
		fail(qos.AddEgressQdisc(qos.GetTBFValues(rate, burst, 0, 0), device))
	}
}

func number(text string) uint64 {
	found, err := strconv.ParseUint(text, 10, 64)
	fail(err)
	return found
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
