"""One of each family of GluonCV's classifiers, small; tests marked zoo look at all names."""

CLASSIFIERS = (
    "resnet18_v1",
    "resnet50_v1b_gn",
    "se_resnet18_v2",
    "resnest14",
    "mobilenet0.25",
    "mobilenetv2_0.25",
    "mobilenetv3_small",
    "shufflenet_v2",
    "squeezenet1.1",
    "alexnet",
    "dla34",
    "cifar_resnet20_v1",
    "cifar_residualattentionnet56",
    "inceptionv3",
    "vgg11_bn",
    "xception",
    "googlenet",
    "densenet121",
    "hrnet_w18_small_v1_c",
)
