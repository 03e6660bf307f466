// An application of services that call each other, as small as one can be: what it shows is the time of its calls.
//
//	app serve --listen :8080 --calls http://cart:7070/,http://ads:9555/ --answer 3    one service, its answers of so many bytes
//	app load --url http://frontend/ --rate 10 --duration 30s --warm-up 5s   its users, at a set rate; prints one JSON object
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
