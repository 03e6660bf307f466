// A small application of services that call each other, to measure the time of calls.
//
//	app serve --listen :8080 --calls http://cart:7070/,http://ads:9555/ --answer 3    a service with answers of 3 bytes
//	app load --url http://frontend/ --rate 10 --duration 30s --warm-up 5s   requests at a fixed rate; prints a JSON object
package main

import (
	"fmt"
	"os"
)

func main() {
	verbs := map[string]func([]string) error{"serve": serve, "load": load}
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: app serve|load --help")
		os.Exit(2)
	}
	if err := verbs[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
